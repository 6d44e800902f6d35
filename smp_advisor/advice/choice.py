"""Reasons for the recommended plan: its rank, its certainty, its batch, the settings of the user and the defaults."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import sentence
from smp_advisor.core.words import plural
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.wording import (
    adapter_text,
    batch_limit,
    gib,
    global_batch,
    listed,
    percent,
    probability,
    sample_unit,
    step_time,
    utilization,
)
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.search.candidates import fp16_reason
from smp_advisor.search.rank import NEAR_BEST, TECHNIQUE_GAIN, TECHNIQUE_PROBABILITY, batch_policy, kept_share, policy
from smp_advisor.workload import Adapter, Model, format_count
from smp_advisor.workload.job import OPTIMIZERS, Job
from smp_advisor.workload.stack import kernel_of, stack, training_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search.decision import BatchChoice, Decision
    from smp_advisor.search.search import SearchResult


_CLEAR = 0.75
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen".split()  # noqa: SIM905


def certainty(decision: Decision) -> str:
    """Return how certain the choice is and what follows, its expected regret, and families as fast as its own."""
    text = f"Certainty: {certainty_in_short(decision)}"
    if decision.close == 1 and decision.near_best_probability < _CLEAR:
        text += f" Expected loss against the best plan: {percent(decision.expected_regret)} of speed."
    if decision.indistinct:
        text += f" By the cost model, {listed(decision.indistinct)} may be as fast"
        text += f"; the published family is preferred ({decision.published})." if decision.published else "."
    return text


def certainty_in_short(decision: Decision) -> str:
    """Return how certain the choice is and what follows, as the start of `certainty`'s text."""
    if decision.mfu < _LOW_MFU:
        return sentence("advice", "idle", mfu=percent(decision.mfu))
    if decision.near_best_probability >= _CLEAR:
        return "no other plan of this library at this batch is likely to be noticeably faster."
    if decision.close > 1:
        within = percent(max(decision.close_within, 0.01))
        number = _NUMBERS[decision.close] if decision.close < len(_NUMBERS) else str(decision.close)
        return sentence("advice", "close", number=number, within=within)
    return "another plan may be faster; a 20-step probe of both decides."


def pretraining_or_fine_tuning(model: Model, job: Job) -> str:
    """Question about the kind of training of a published model, with what follows; empty if the job answers it."""
    if job.training != "auto" or job.adapter is not None or not model.reads_tokens:
        return ""
    tuned, usual = (batch_policy(model, of).target_tokens for of in (replace(job, training="fine-tuning"), job))
    trained, parameters = format_count(Adapter().parameter_count(model)), format_count(model.parameter_count)
    return sentence("advice", "training", usual=usual, tuned=tuned, trained=trained, parameters=parameters)


_LOW_MFU = 0.1
"""Model FLOPs utilization below which a recommendation has a warning."""


def why_this_plan(best: SearchResult, probability: float) -> str:
    """Return how many plans fit, and by which rule this one is the first of them."""
    values = {"fitting": len(best.ranked), "plans": best.plans_enumerated, "probability": percent(probability)}
    fit = sentence("advice", "fitting", **values)
    if best.objective == "throughput":
        return f"{fit} {_rank(best)}"
    if best.objective == "cost":
        return fit
    merit = {"headroom": "leaves the most memory free", "simplicity": "uses the fewest techniques"}[best.objective]
    least = kept_share(best.objective)
    cost = 1 - best.scores.tokens_per_second[0] / best.scores.tokens_per_second.max()
    price = f" It costs {percent(cost)} of speed against the fastest." if cost >= 0.005 else ""
    return f"{fit} {sentence('advice', 'merit', least=percent(least), merit=merit)}{price}"


def missing_kernels(model: Model) -> str:
    """Return a sentence on a recurrence whose kernels are packages of their own: the time depends on them."""
    entry = kernel_of(model.family) if model.origin == "measured" else None
    if entry is None:
        return ""
    key = "modeled_kernel" if entry["modeled"] else "kernels"
    return sentence("advice", key, title=entry["title"], packages=entry["packages"])


def beyond_positions(model: Model, job: Job) -> str:
    """Note on sequences longer than a model with relative positions was trained on; empty for others."""
    positions = json.loads(model.config_json or "{}").get("max_position_embeddings")
    length = model.sequence_length(job.sequence_length)
    if not isinstance(positions, int) or model.shape.max_positions or length <= positions:
        return ""
    return sentence("advice", "positions", model=model, positions=positions, length=length)


def batch_neighbor(model: Model, neighbor: tuple[int, float] | None) -> str:
    """Return the sentence on a slightly larger batch that trains faster; empty without one."""
    if neighbor is None:
        return ""
    samples = plural(neighbor[0], sample_unit(model).removesuffix("s"))
    return f"A global batch of {samples} would train {percent(neighbor[1])} faster."


def price_of_certainty(least: float, cost: tuple[float, float] | None) -> str:
    """Return the sentence on the speed that the required probability costs; empty if it costs little."""
    if cost is None:
        return ""
    chance, faster = probability(cost[1]), percent(cost[0])
    return sentence("advice", "certainty", least=percent(least), chance=chance, faster=faster)


def low_utilisation(estimate: Estimate) -> str:
    """Warning if even the best plan leaves the GPUs idle; empty otherwise."""
    if estimate.mfu >= _LOW_MFU:
        return ""
    time = estimate.time
    working = time.forward_seconds + time.backward_seconds + time.recomputation_seconds + time.optimizer_seconds
    cause = "small_operations" if estimate.mfu < _LOW_MFU / 20 else "small_layers"
    cause = sentence("advice", "slow_links" if working < time.total_seconds / 2 else cause)
    return sentence("advice", "low_utilisation", mfu=utilization(estimate), cause=cause)


def _rank(best: SearchResult) -> str:
    scores = best.scores
    top = int(scores.tokens_per_second.argmax())
    faster = float(scores.tokens_per_second[top] / scores.tokens_per_second[0]) - 1
    if faster <= NEAR_BEST:
        return sentence("advice", "near_fastest", near=f"{100 * NEAR_BEST:.0f} %")
    more = int(scores.techniques[top] - scores.techniques[0])
    larger = scores.tokens_per_step[top] > scores.tokens_per_step[0]
    wider = scores.nodes[top] > scores.nodes[0]
    differences = [
        *([f"{more} more {'technique' if more == 1 else 'techniques'}"] if more > 0 else []),
        *(["a larger batch"] if larger else []),
        *([f"communication over {scores.nodes[top]:,} nodes (vs {scores.nodes[0]:,})"] if wider else []),
    ]
    has = f", with {listed(differences)}" if differences else ""
    gains = {"gain": TECHNIQUE_GAIN, "node_gain": policy().node_gain, "resolved": TECHNIQUE_PROBABILITY}
    shares = {name: percent(share) for name, share in gains.items()}
    return sentence("advice", "fastest", faster=percent(faster), has=has, **shares)


def levers_used(model: Model, cluster: Cluster, before: Job, job: Job, value: Estimate) -> tuple[str, ...]:
    """Free settings of the job that are part of a plan, each with what it brings to this plan."""
    sentences = []
    for name, setting in training_settings().items():
        chosen, usual = getattr(job, name), getattr(before, name)
        if chosen != usual:
            without = estimate(model, cluster, replace(job, **{name: usual}), value.plan)
            sizes = {"needed": gib(value.needed_gib), "without": gib(without.needed_gib)}
            times = {"time": step_time(value), "slower": step_time(without)}
            values = {"title": setting.title, "name": name, "value": chosen, "usual": usual}
            price = setting.price and f" {setting.price}"
            sentences.append(sentence("advice", "lever", **values, **sizes, **times, price=price))
    return tuple(sentences)


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
    """Return settings that the user left at their default, as phrases."""
    length = f"sequence length {job.sequence_length:,} tokens"
    if profiled_length is not None:
        same = profiled_length == job.sequence_length
        length += " (as profiled)" if same else f" (profiled with {profiled_length:,})"
    attention = "eager attention (PyTorch 1.13 has no fused kernel of its own)"
    fusible = all(attention.fusible for group in model.groups for attention in group.block.attentions)
    if job.attention == "fused":
        attention = "fused attention (PyTorch 2's own)" if fusible else "eager attention (the code has no fused one)"
    elif get_library(library).framework == "tensorflow":
        attention = "eager attention"
    phrases = {
        "precision": f"precision {job.precision}"
        + (f" ({fp16_reason(library, cluster)})" if job.precision == "fp16" else ""),
        "optimizer": "optimizer Adam",
        "attention": attention,
        "stack": f"code of the exported script ({stack(get_library(library).stack).title})",
        **{
            name: setting.phrase
            for name, setting in training_settings().items()
            if setting.phrase and name in get_library(library).training_settings
        },
        "sequence_length": length,
        "global_batch_size": f"global batch free up to {batch_limit(model, job.max_tokens_per_step)}",
    }
    result = [
        phrase
        for name, phrase in phrases.items()
        if name in at_default and not (name == "sequence_length" and model.fixed_sequence_length)
    ]
    if model.origin == "inferred" and not vocab_given:
        result.append(f"vocabulary {model.shape.vocab:,}")
    return tuple(result)


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
    """Return settings that the user gave, as phrases: ``sequence length 512``, ``tensor parallel degree 4``."""
    first = ("sequence_length", "global_batch_size", "tokens")
    ordered = [*(name for name in first if name in names), *sorted(names - _ELSEWHERE - set(first))]
    phrases = [_job_phrase(name, getattr(job, name)) for name in ordered]
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


_NEAR_TARGET = 1.5
"""Largest ratio of a batch and the published one that counts as the same."""


def _limit_of(model: Model, batch: BatchChoice) -> str:
    if not batch.cap_binds or batch.cap_tokens is None:
        return ""
    cost = f", which costs {percent(batch.cap_cost)} of speed" if batch.cap_cost >= NEAR_BEST else ""
    return f" Twice the batch would exceed the limit of {batch_limit(model, batch.cap_tokens)}{cost}."


def batch_reason(model: Model, estimate: Estimate, batch: BatchChoice) -> str:
    """Return the batch, and a published one for this size: ``4,096 samples (2.1 M tokens). GPT-3 13B used 2 M``."""
    samples = global_batch(model, estimate).partition(" (")[0]
    if model.reads_tokens:
        samples += f" ({format_count(estimate.tokens_per_step)} tokens)"
    if batch.policy is None:
        return f"{samples}, as requested."
    usual, reason = batch.policy, ""
    ratio = batch.tokens_per_step / usual.target_tokens
    if ratio > _NEAR_TARGET and batch.half is not None and batch.half < 1 - NEAR_BEST:
        reason = f", because half of it would be {percent(1 - batch.half)} slower"
    elif ratio < 1 / _NEAR_TARGET:
        if batch.cap_tokens is not None and 2 * batch.tokens_per_step > batch.cap_tokens:
            reason = f", because the limit is {format_count(batch.cap_tokens)} tokens per step"
        elif batch.twice is None:
            most = policy().most_accumulated
            many = 2 * getattr(estimate.plan, "gradient_accumulation_steps", 1) > most
            reason = f", because no plan with twice the batch fits{f' in {most} accumulated batches' if many else ''}"
        elif 2 * estimate.step_seconds / batch.twice > usual.longest_step_seconds:
            minutes = f"{usual.longest_step_seconds / 60:g} minutes"
            reason = f", because a step with twice the batch would take more than {minutes}"
        elif batch.larger_gain < NEAR_BEST:
            reason = ", because larger ones are not noticeably faster"
        elif batch.twice < 1 + NEAR_BEST:
            reason = f", because twice the batch gains less than {percent(NEAR_BEST)} without more techniques"
    example = usual.example if model.sample_is_call else usual.example.partition(", ")[0]
    limit = "" if "limit" in reason else _limit_of(model, batch)
    return f"{samples}{reason}. {example[0].upper()}{example[1:]}.{limit}"
