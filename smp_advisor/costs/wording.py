"""Figures in words: with their units, their 95 % prediction intervals, and how a plan fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smp_advisor.costs import figures
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.core.tables import Figure
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.adapter import Adapter
    from smp_advisor.workload.model import Model

SAME = 0.005
"""Relative changes below this share count as no change: the cost model does not resolve them."""

VISIBLE_GIB = 0.05
"""Half of the last digit in which memory is shown. Larger differences are visible."""


def gib(value: float) -> str:
    """Memory: ``28.0 GiB``."""
    return f"{value:,.1f} GiB"


def seconds(value: float) -> str:
    """Return the time of a step: ``3.54 s``, ``87 ms``, ``0.42 ms``."""
    if value < 0.00995:
        return f"{value * 1000:.2g} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"


def percent(share: float) -> str:
    """Share without its sign: ``3.4 %``, ``12 %``."""
    value = abs(share) * 100
    return f"{value:.1f} %" if value < 9.95 else f"{value:,.0f} %"


def probability(value: float) -> str:
    """Probability, never as a certainty: ``85.5 %``, ``over 99.9 %``."""
    if value > 0.999:
        return "over 99.9 %"
    return "under 0.1 %" if value < 0.001 else f"{value * 100:.1f} %"


def usd(value: float) -> str:
    """Money: ``25.25 USD``."""
    return f"{value:,.2f} USD" if value < 1000 else f"{value:,.0f} USD"


def listed(parts: tuple[str, ...] | list[str]) -> str:
    """Join with commas and a final "and"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def first_sentence(text: str) -> str:
    """Return the text up to the first full stop that ends a sentence."""
    head, stop, _ = text.partition(". ")
    return f"{head}." if stop else text


def sentences(text: str) -> list[str]:
    """Sentences of a text: each ends with a period, and the next one starts with a capital letter or a number.

    Examples
    --------
    >>> sentences("56 of 1,234 plans fit. Llama 2 7B used 4 M. 2 of them are as fast.")
    ['56 of 1,234 plans fit.', 'Llama 2 7B used 4 M.', '2 of them are as fast.']
    """
    return [part for part in re.split(r"(?<=\.) (?=[A-Z0-9])", text) if part]


def fits(estimate: Estimate, min_fit_probability: float) -> bool:
    """Return whether a plan fits in GPU and host memory with the required probability."""
    return estimate.fit_probability >= min_fit_probability and estimate.host_memory_fits


def checkpointing_text(strategy: str) -> str:
    """Return the parts that activation checkpointing recomputes: ``groups of 2 blocks``; ``off`` without it."""
    if strategy.startswith("every_"):
        return f"one of {strategy.removeprefix('every_')} blocks"
    if strategy.startswith("group_"):
        return f"groups of {strategy.removeprefix('group_')} blocks"
    texts = {
        "none": "off",
        "each": "each block",
        "contiguous": "all blocks of a stage",
        "operators": "part of the operators",
    }
    return texts.get(strategy, strategy)


def adapter_text(adapter: Adapter) -> str:
    return f"{'QLoRA' if adapter.base_bits < 16 else 'LoRA'} of rank {adapter.rank}"


def parameters_text(model: Model, adapter: Adapter | None) -> str:
    """Return the number of parameters and, with an adapter, of those that are trained."""
    text = f"{format_count(model.parameter_count)} parameters"
    if adapter is None:
        return text
    places = {"query-value": "queries and values", "attention": "attention", "all-linear": "all linear layers"}
    trained = format_count(adapter.parameter_count(model))
    where = places[adapter.targets]
    if adapter.adapts_experts(model):
        where = "attention, routers and experts"
    elif any(product.experts > 1 for group in model.groups for product in group.block.matmuls):
        where += ", not on experts"
    wide = sum(group.count * group.block.unpacked_parameters for group in adapter.applied_to(model).groups)
    experts_note = f", and {format_count(wide)} of experts stay in 16 bits" if adapter.quantized and wide > 1e7 else ""
    return f"{text}, frozen; {adapter_text(adapter)} on {where} trains {trained}{experts_note}"


def gives_back(estimate: Estimate) -> bool:
    """Return whether the allocator visibly keeps more memory than the plan needs."""
    return estimate.memory.peak.cached_gib > VISIBLE_GIB


def spare(estimate: Estimate) -> str:
    """Return the memory that a monitor of the GPU shows on top of the memory needed."""
    return f"nvidia-smi shows up to {gib(estimate.memory.peak.cached_gib)} more, which PyTorch keeps and can release"


_START = {"load": "loading the quantized model on every GPU is ", "trace": "tracing the model on one GPU is "}


_HOST = {
    "load": "loading the model", "trace": "tracing the model", "first update": "the first update", "steps": "a step",
    "save": "saving a checkpoint",
}  # fmt: skip


def fit(estimate: Estimate, min_fit_probability: float) -> str:
    """Predicate on how a plan fits: "fits with 9.1 GiB to spare"."""
    missing = gib(-estimate.headroom_gib)
    over = f"{missing if missing != '0.0 GiB' else 'slightly'} over the {gib(estimate.usable_gpu_memory_gib)} available"
    if estimate.headroom_gib < 0 and estimate.fit_probability < min_fit_probability:
        first = estimate.phases[0]
        before = estimate.needed_gib > estimate.memory.peak.total_gib + VISIBLE_GIB
        return f"does not fit: {_START[first.name] if before else ''}{over}"
    if not estimate.host_memory_fits:
        worst = max(estimate.phases, key=lambda phase: (phase.host_gib_per_node, phase.name == "steps"))
        required = gib(worst.host_gib_per_node)
        return f"does not fit: a node has less than the {required} of host memory that {_HOST[worst.name]} requires"
    if estimate.headroom_gib >= 0 and estimate.fit_probability >= min_fit_probability:
        return f"fits with {gib(estimate.headroom_gib)} to spare"
    required = probability(min_fit_probability)
    chance = f"fits with a probability of {probability(estimate.fit_probability)}"
    if estimate.fit_probability < min_fit_probability:
        return f"{chance} only ({required} required)"
    return f"{chance} ({required} required): {over}"  # the required probability is less than an even chance


def degree_of_change(before: float, after: float, *, more: str = "more", less: str = "less") -> str:
    """Relative change in words: ``12 % more``; "about the same" below half a percent."""
    change = after / before - 1
    if abs(change) < SAME:
        return "about the same"
    return f"{percent(change)} {more if change > 0 else less}"


def unit(model: Model) -> str:
    """Unit of the amounts: ``tokens``, or ``samples`` (images, for example)."""
    return "tokens" if model.reads_tokens else "samples"


def sample_unit(model: Model) -> str:
    """Unit of the batch: ``samples``, or calls with inputs of a fixed size."""
    return "calls with your inputs" if model.sample_is_call else "samples"


def amount(model: Model, tokens: float) -> float:
    """Convert tokens to the model's `unit`."""
    return tokens if model.reads_tokens else tokens / (model.fixed_sequence_length or 1)


def batch_limit(model: Model, tokens: int) -> str:
    """Upper limit of a free global batch: ``4,000,000 tokens``."""
    return f"{int(amount(model, tokens)):,} {unit(model)}"


def global_batch(model: Model, estimate: Estimate) -> str:
    """Return a global batch: ``6,144 samples (3,145,728 tokens)``."""
    samples = f"{estimate.global_batch_size:,} {sample_unit(model)}"
    if estimate.global_batch_size == 1:
        samples = samples.replace("samples", "sample").replace("calls", "call")
    return f"{samples} ({estimate.tokens_per_step:,} tokens)" if model.reads_tokens else samples


def _text(figure: Figure | None) -> str:
    """Return a figure with its unit and interval; empty for an unknown one."""
    return "" if figure is None else figure.text


def duration(estimate: Estimate, seconds: float) -> str:
    """Return a part of the step: ``0.412 s (0.351 to 0.567)``, ``41.2 ms (35.1 to 56.7)``."""
    return figures.duration(estimate, seconds).text


def step_time(estimate: Estimate) -> str:
    """Return the time of a step: ``3.54 s (3.02 to 4.87)``."""
    return duration(estimate, estimate.step_seconds)


def throughput(estimate: Estimate) -> str:
    """Return the throughput: ``361 samples/s (263 to 424)``."""
    return _text(figures.figure(estimate, "samples_per_second"))


def rate(model: Model, estimate: Estimate) -> str:
    """Return the throughput in the unit of the model: ``740,000 tokens/s (538,000 to 868,000)``, or samples."""
    return _text(figures.figure(estimate, "tokens_per_second" if model.reads_tokens else "samples_per_second"))


def utilization(estimate: Estimate) -> str:
    """Return the model FLOPs utilization: ``48.7 % (35.5 to 57.1)``."""
    return _text(figures.figure(estimate, "mfu"))


def cost_per_million(model: Model, estimate: Estimate) -> str:
    """Return the cost: ``0.823 USD (0.702 to 1.13) per million tokens``; empty if the price is unknown."""
    figure = figures.cost_per_million(model, estimate)
    return "" if figure is None else f"{figure.text} {figure.note}"


def run_time(estimate: Estimate) -> str:
    """Return the time of the run: ``21.7 days (18.5 to 29.8)``, ``7.31 hours (6.23 to 10.1)``; empty without tokens."""
    return _text(figures.run_time(estimate))


def run_cost(estimate: Estimate) -> str:
    """Return the cost of the run: ``45,300 USD (38,600 to 62,300)``; empty if tokens or price are unknown."""
    return _text(figures.figure(estimate, "usd_total"))


def compared(current: Estimate, alternative: Estimate) -> str:
    """Predicate of an alternative plan against the current one: memory, and step time if they have the same batch."""
    needed, reference = gib(alternative.needed_gib), gib(current.needed_gib)
    memory = f"the same {reference} per GPU" if needed == reference else f"{needed} per GPU (vs {reference})"
    if current.global_batch_size == alternative.global_batch_size:
        before, after = step_time(current), step_time(alternative)
        change = degree_of_change(current.step_seconds, alternative.step_seconds, more="longer", less="shorter")
        time = f"the same {after} per step" if before == after else f"{after} per step, vs {before}: {change}"
        return f"needs {memory} and takes {time}"
    before, after = throughput(current), throughput(alternative)
    change = degree_of_change(current.samples_per_second, alternative.samples_per_second)
    speed = f"the same {after}" if before == after else f"{after}, vs {before}: {change}"
    return f"needs {memory} and processes {speed}"


def overhead_notes(estimate: Estimate) -> tuple[str, ...]:
    """Return one sentence per part, with its source."""
    return tuple(
        f"{part.title}, {100 * part.share:.2f} % of the time{' (assumed)' if part.assumed else ''}: {part.detail}"
        f" Source: {part.source}."
        for part in estimate.effective.parts
    )
