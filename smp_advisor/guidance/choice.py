"""Reasons for the recommended plan: its rank, its certainty, the settings of the user and the defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.search import NEAR_BEST, TECHNIQUE_GAIN, TECHNIQUE_PROBABILITY, fp16_reason, policy
from smp_advisor.wording import adapter_text, batch_limit, listed, percent, probability, utilization
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.job import OPTIMIZERS
from smp_advisor.workload.stack import stack, training_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search import Decision, SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_CLEAR = 0.75
_NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
]


def certainty(decision: Decision) -> str:
    """How certain the choice is and what follows, its expected regret, and families as fast as its own."""
    text = f"Certainty: {certainty_in_short(decision)}"
    if decision.close == 1 and decision.near_best_probability < _CLEAR:
        text += f" Expected loss against the best plan: {percent(decision.expected_regret)} of speed."
    if decision.indistinct:
        text += f" By the cost model, {listed(decision.indistinct)} may be as fast"
        text += f"; the published family is preferred ({decision.published})." if decision.published else "."
    return text


def certainty_in_short(decision: Decision) -> str:
    """How certain the choice is and what follows, as the start of `certainty`'s text."""
    if decision.near_best_probability >= _CLEAR:
        return "a clear choice, no other plan is likely to be noticeably faster."
    if decision.close > 1:
        within = percent(max(decision.close_within, 0.01))
        number = _NUMBERS[decision.close] if decision.close < len(_NUMBERS) else str(decision.close)
        return f"{number} plans are within {within}: any of them is fine; a 20-step probe decides."
    return "another plan may be faster; a 20-step probe of both decides."


_LOW_MFU = 0.1
"""Model FLOPs utilization below which a recommendation has a warning."""


def why_this_plan(best: SearchResult, probability: float) -> str:
    """How many plans fit, and by which rule this one is the first of them."""
    fit = (
        f"{len(best.ranked):,} of {best.plans_enumerated:,} plans fit with a probability of at least "
        f"{percent(probability)}."
    )
    if best.objective == "throughput":
        return f"{fit} {_rank(best)}"
    if best.objective == "cost":
        return fit
    merit = {"headroom": "leaves the most memory free", "simplicity": "uses the fewest techniques"}[best.objective]
    least = policy().share_of(best.objective)
    cost = 1 - best.scores.tokens_per_second[0] / best.scores.tokens_per_second.max()
    price = f" It costs {percent(cost)} of speed against the fastest." if cost >= 0.005 else ""
    return f"{fit} Of the plans with at least {percent(least)} of the best speed, this one {merit}.{price}"


def low_utilisation(estimate: Estimate) -> str:
    """Warning if even the best plan leaves the GPUs idle; empty otherwise."""
    if estimate.mfu >= _LOW_MFU:
        return ""
    return (
        f"Warning: the plan reaches only {utilization(estimate)} of the GPUs' peak (MFU). The links of this"
        " cluster are too slow for the model, or the batches are too small."
    )


def _rank(best: SearchResult) -> str:
    """Rule by which the first plan comes first."""
    scores = best.scores
    top = int(scores.tokens_per_second.argmax())
    faster = float(scores.tokens_per_second[top] / scores.tokens_per_second[0]) - 1
    if faster <= NEAR_BEST:
        return (
            f"This one is within {100 * NEAR_BEST:.0f} % of the fastest. Equal plans rank by fewest techniques, then by"
            " the smallest communication groups, the smallest batch and the fewest microbatches."
        )
    more = int(scores.techniques[top] - scores.techniques[0])
    larger = scores.tokens_per_step[top] > scores.tokens_per_step[0]
    wider = scores.nodes[top] > scores.nodes[0]
    differences = [
        *([f"{more} more {'technique' if more == 1 else 'techniques'}"] if more > 0 else []),
        *(["a larger batch"] if larger else []),
        *([f"communication over {scores.nodes[top]:,} nodes (vs {scores.nodes[0]:,})"] if wider else []),
    ]
    has = f", with {listed(differences)}" if differences else ""
    return (
        f"The fastest is estimated {percent(faster)} faster{has}. A technique must gain at least"
        f" {percent(TECHNIQUE_GAIN)} over the best plan without it, communication over more nodes"
        f" {percent(policy().node_gain)}, and a family of plans must be faster with a probability of at least"
        f" {percent(TECHNIQUE_PROBABILITY)}. Equal plans rank by the smallest communication"
        " groups, the smallest batch and the fewest microbatches."
    )


def defaults(
    library: str,
    model: Model,
    cluster: Cluster,
    job: Job,
    at_default: Collection[str],
    *,
    vocab_given: bool,
    profiled_length: int | None = None,
) -> tuple[str, ...]:
    """Settings that the user left at their default, as phrases.

    `at_default` are the names of the job's settings that the user did not set, `vocab_given` is whether the user set
    the vocabulary of an inferred shape, `profiled_length` is the sequence length of the model's profile, if it has one.
    """
    length = f"sequence length {job.sequence_length:,} tokens"
    if profiled_length is not None:
        same = profiled_length == job.sequence_length
        length += " (as profiled)" if same else f" (profiled with {profiled_length:,})"
    phrases = {
        "precision": f"precision {job.precision}"
        + (f" ({fp16_reason(library, cluster)})" if job.precision == "fp16" else ""),
        "optimizer": "optimizer Adam",
        "attention": _attention(library, job),
        "stack": f"code of the exported script ({stack(get_library(library).stack).title})",
        **{
            name: setting.phrase
            for name, setting in training_settings().items()
            if setting.phrase and name in get_library(library).training_settings
        },
        "sequence_length": length,
        "global_batch_size": f"global batch free up to {batch_limit(model, job)}",
    }
    result = [
        phrase
        for name, phrase in phrases.items()
        if name in at_default and not (name == "sequence_length" and model.fixed_sequence_length)
    ]
    if model.origin == "inferred" and not vocab_given:
        result.append(f"vocabulary {model.shape.vocab:,}")
    return tuple(result)


def _attention(library: str, job: Job) -> str:
    if job.attention == "fused":
        return "fused attention (PyTorch 2's own)"
    if get_library(library).framework == "tensorflow":
        return "eager attention"
    return "eager attention (PyTorch 1.13 has no fused kernel of its own)"


_ELSEWHERE = frozenset({"calibration", "overheads"})
"""Settings of a job that the report shows in other places."""


def requested(
    library: str,
    job: Job,
    names: frozenset[str],
    pins: Mapping[str, Any],
    shape: Mapping[str, Any],
    *,
    objective: str = "throughput",
    min_fit_probability: float = 0.95,
) -> tuple[str, ...]:
    """Settings that the user gave, as phrases: ``sequence length 512``, ``tensor parallel degree 4``.

    `names` are those of the job's settings that the user set, `pins` the fixed fields of the plan, `shape` the fixed
    values of an inferred shape.
    """
    phrases = [_job_phrase(name, getattr(job, name)) for name in _order(names)]
    for name, value in shape.items():
        title = "vocabulary" if name == "vocab" else name
        phrases.append(f"{title} {value:,}" if isinstance(value, int) else f"{title} {value}")
    for name, value in pins.items():
        parameter = schema(library).described(name)
        title = parameter.title.lower() if parameter else name.replace("_", " ")
        phrases.append(_switch(title, value))
    if objective != "throughput":
        phrases.append(f"objective {objective}")
    if min_fit_probability != 0.95:
        phrases.append(f"fit probability of at least {probability(min_fit_probability)}")
    return tuple(phrases)


def _order(names: frozenset[str]) -> list[str]:
    first = ("sequence_length", "global_batch_size", "tokens")
    return [*(name for name in first if name in names), *sorted(names - _ELSEWHERE - set(first))]


def _switch(title: str, value: object) -> str:
    return f"{title} {'on' if value else 'off'}" if isinstance(value, bool) else f"{title} {value}"


def _job_phrase(name: str, value: Any) -> str:
    settings = training_settings()
    match name:
        case "sequence_length":
            return f"sequence length {value:,}"
        case "global_batch_size":
            return "any global batch" if value is None else f"global batch of {value:,} samples"
        case "tokens":
            return "no number of tokens" if value is None else f"{format_count(value)} tokens"
        case "max_tokens_per_step":
            return f"at most {value:,} tokens per step"
        case "optimizer":
            return OPTIMIZERS[value].label
        case "adapter":
            return "no adapter" if value is None else adapter_text(value)
        case "stack":
            return "code of the exported script" if value == "auto" else f"code: {stack(value).title}"
    title = settings[name].title.lower() if name in settings else name.replace("_", " ")
    return _switch(title, value)
