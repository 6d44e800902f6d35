"""The recommendation as plain text: what a terminal, a log and a screen reader get."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from smp_advisor.guidance.amounts import global_batch, unit, usd_per_million
from smp_advisor.guidance.wording import gib, gives_back, probability, spare
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.step import Reference
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.libraries.schema import Parameter
    from smp_advisor.workload.model import Model

__all__ = ["report"]

_WIDTH = 100


def report(advice: Advice) -> str:
    """The whole recommendation: plan, figures, memory, explanation, reference, demands on the script."""
    sections = (
        ("Recommendation", _header(advice)),
        ("Configuration", _plan(advice.model, advice.plan, advice.estimate)),
        ("Figures", _figures(advice.model, advice.estimate)),
        ("Memory per GPU", _memory(advice.estimate)),
        ("Why", _why(advice)),
        (f"Nearest AWS reference: {advice.reference.name if advice.reference else ''}", _reference(advice.reference)),
        ("What it demands of your script", _demands(advice)),
        ("What the figures rest on", advice.estimate.assumptions),
    )
    blocks = []
    for title, lines in sections:
        body = "\n".join(_wrapped(line) for line in lines)
        if body:
            blocks.append(f"{title}\n{'-' * len(title)}\n{body}")
    return "\n\n".join(blocks)


def _wrapped(line: str) -> str:
    if line.startswith("  "):  # tables keep their columns
        return line
    # A number keeps its unit: textwrap does not break at no-break spaces.
    kept = re.sub(r"(\d) (%|GiB|s\b|ms\b|B\b)", "\\1\xa0\\2", line)
    filled = textwrap.fill(kept, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return filled.replace("\xa0", " ")


def _header(advice: Advice) -> Iterator[str]:
    yield advice.model.summary
    yield advice.cluster.summary
    if advice.defaults:
        yield f"Defaults: {'; '.join(advice.defaults)}."
    if advice.library_because:
        yield f"Library: {schema(advice.plan.library).name}. {advice.library_because}"
    yield advice.because


def _plan(model: Model, plan: Plan, estimate: Estimate) -> Iterator[str]:
    rows = _settings(plan)
    rows.append(("global batch", global_batch(model, estimate)))
    width = max(30, *(len(name) + 2 for name, _ in rows))
    yield from (f"  {name:<{width}}{value}" for name, value in rows)


def _settings(plan: Plan) -> list[tuple[str, object]]:
    """A plan's settings in words, as its library calls them."""
    if plan.library != "smp-v1":
        stated = schema(plan.library)
        fields = [one for one in (*stated.parameters, *stated.settings) if one.audience == "user"]
        known = plan_fields(plan.library)
        values = [(one, getattr(plan, one.key)) for one in fields if one.key in known]
        return [(one.title.lower(), _said(one, value)) for one, value in values if value is not None]
    rows: list[tuple[str, object]] = [
        ("tensor parallel degree", plan.tensor_parallel_degree),
        ("pipeline parallel degree", plan.pipeline_parallel_degree),
        ("sharded data parallel degree", plan.sharded_data_parallel_degree),
        ("shard optimizer state", "yes" if plan.shard_optimizer_state else "no"),
        ("activation checkpointing", plan.activation_checkpointing or "none"),
        ("offload activations", "yes" if plan.offload_activations else "no"),
        ("batch size", f"{plan.batch_size} per {'tensor parallel group' if plan.prescaled_batch else 'GPU'}"),
        ("microbatches", plan.microbatches),
    ]
    if plan.pipeline_parallel_degree > 1:
        rows.append(("active microbatches", f"{plan.active_in_flight} ({plan.pipeline} pipeline)"))
    return rows


def _said(setting: Parameter, value: object) -> object:
    if setting.type == "str" and value is False:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _figures(model: Model, estimate: Estimate) -> Iterator[str]:
    price = estimate.usd_per_hour
    low, high = estimate.step_seconds_range
    needed = f"; {gib(estimate.needed_gib)} needed, {spare(estimate)}" if gives_back(estimate) else ""
    rate = f"{estimate.samples_per_second:,.1f} samples/s"
    if model.reads_tokens:
        rate += f", {estimate.tokens_per_second:,.0f} tokens/s"
    price_each = usd_per_million(model, estimate)
    rows = [
        ("memory", f"{gib(estimate.memory.peak.total_gib)} of {gib(estimate.usable_gpu_memory_gib)} usable{needed}"),
        ("headroom", f"{gib(estimate.headroom_gib)}; fits with probability {probability(estimate.fit_probability)}"),
        ("throughput", rate),
        ("step time", f"{estimate.step_seconds:.2f} s (95 %: {low:.2f} to {high:.2f} s)"),
        ("utilisation", f"{estimate.tflops_per_gpu:.0f} TFLOPS per GPU, {100 * estimate.mfu:.1f} % MFU"),
        ("price", "no on-demand price known" if price is None else f"{price:,.2f} USD an hour"),
    ]
    if price_each is not None:
        rows.append(("cost", f"{price_each:.3f} USD per million {unit(model)}"))
    if estimate.days is not None:
        between = estimate.usd_total_range
        total = (
            "" if between is None else f", {estimate.usd_total:,.0f} USD (95 %: {between[0]:,.0f} to {between[1]:,.0f})"
        )
        rows.append(("whole run", f"{estimate.days:,.1f} days{total}"))
    yield from (f"  {name:<14}{value}" for name, value in rows)


def _memory(estimate: Estimate) -> Iterator[str]:
    from smp_advisor.costs.estimate import CATEGORIES

    stages = estimate.memory.stages
    peak = estimate.memory.peak
    if len(stages) > 1:
        yield f"Stage {peak.stage} of {len(stages)} has the highest peak ({peak.layers} layers):"
    for name in CATEGORIES:
        value = getattr(peak, name)
        if value >= 0.005:
            yield f"  {name.removesuffix('_gib').replace('_', ' '):<20}{value:>8.2f} GiB"
    yield f"  {'total':<20}{peak.total_gib:>8.2f} GiB"


def _why(advice: Advice) -> Iterator[str]:
    for step in advice.steps:
        yield f"{step.order}. {step.title}: {step.decision}. {step.because}"


def _demands(advice: Advice) -> Iterator[str]:
    """What is left to do; what the generated cells already do is only counted."""
    done = [one for one in advice.pitfalls if one.severity == "info"]
    yield from (f"{one.id}: {one.text}" for one in advice.pitfalls if one.severity != "info")
    if done:
        names = ", ".join(one.id for one in done)
        yield f"Already done by the generated cells, or to know (advice.pitfalls has each in words): {names}."


def _reference(reference: Reference | None) -> Iterator[str]:
    if reference is None:
        return
    fits = "fits" if reference.fits else "does not fit"
    yield f"{reference.summary} By this model it {fits}: it needs {reference.needed_gib:.1f} GiB a GPU."
    for one in reference.differences:
        yield f"- {one.setting}: {one.reference} there, {one.recommended} here. {one.because}"
    if reference.extrapolation:
        yield reference.extrapolation
