"""Details of the recommendation as plain text: every figure, setting, comparison and assumption."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.overheads import overhead_notes
from smp_advisor.libraries.library import get_library, plan_fields
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import (
    compute,
    cost_per_million,
    gib,
    gives_back,
    global_batch,
    probability,
    run_cost,
    run_time,
    spare,
    step_time,
    throughput,
    token_rate,
    utilization,
)
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.step import Reference
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.libraries.schema import Parameter
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["details"]


def details(advice: Advice) -> list[tuple[str, list[str]]]:
    """Sections of the details: titles with their lines."""
    sections = (
        ("Model and cluster", _header(advice)),
        ("Compared clusters", () if advice.sizes is None else advice.sizes.rows()),
        ("Configuration", _plan(advice.model, advice.job, advice.plan, advice.estimate)),
        ("Figures", _figures(advice.model, advice.estimate)),
        ("Calibration with your runs", _learned(advice)),
        ("Memory per GPU", _memory(advice.estimate)),
        ("Traced rank", _traced(advice)),
        ("Effective time", overhead_notes(advice.estimate)),
        ("Ladder", str(advice.ladder()).splitlines()),
        ("Techniques", _techniques(advice)),
        ("Ranks", str(advice.ranks()).splitlines()),
        (f"Nearest AWS reference: {advice.reference.name if advice.reference else ''}", _reference(advice.reference)),
        ("Requirements for your script", _requirements(advice)),
        ("Assumptions", advice.estimate.assumptions),
    )
    return [(title, list(lines)) for title, lines in sections]


def _header(advice: Advice) -> Iterator[str]:
    yield advice.model.summary
    yield advice.cluster.summary
    if advice.defaults:
        yield f"Defaults: {'; '.join(advice.defaults)}."
    if advice.library_because:
        yield f"Library: {advice.library_because}"
    for sentence in advice.library_comparisons:
        yield f"- {sentence}"
    yield advice.because


def _plan(model: Model, job: Job, plan: Plan, estimate: Estimate) -> Iterator[str]:
    rows = _settings(plan)
    for name, value in job.training_settings().items():
        rows.append((training_settings()[name].title.lower(), "on" if value is True else value))
    rows.append(("global batch", global_batch(model, estimate)))
    width = max(30, *(len(name) + 2 for name, _ in rows))
    yield from (f"  {name:<{width}}{value}" for name, value in rows)


def _settings(plan: Plan) -> list[tuple[str, object]]:
    """A plan's settings, with their titles."""
    record, parameters = get_library(plan.library), schema(plan.library)
    names = record.reported or [
        parameter.key for parameter in (*parameters.parameters, *parameters.settings) if parameter.audience == "user"
    ]
    fields = plan_fields(plan.library)
    rows: list[tuple[str, object]] = []
    for name in names:
        parameter = parameters.described(name)
        if name not in fields or parameter is None or getattr(plan, name) is None:
            continue
        rows.append((parameter.title.lower(), _value(plan, parameter)))
    return rows


def _value(plan: Plan, parameter: Parameter) -> object:
    value = getattr(plan, parameter.key)
    if parameter.key == "batch_size" and plan.prescaled_batch:
        return f"{value} per tensor-parallel group"
    if parameter.type == "str" and value is False:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _figures(model: Model, estimate: Estimate) -> Iterator[str]:
    price = estimate.usd_per_hour
    needed = f"; {gib(estimate.needed_gib)} needed, {spare(estimate)}" if gives_back(estimate) else ""
    rate = throughput(estimate)
    if model.reads_tokens:
        rate += f", {token_rate(estimate)}"
    rows = [
        ("memory", f"{gib(estimate.memory.peak.total_gib)} of {gib(estimate.usable_gpu_memory_gib)} usable{needed}"),
        ("headroom", f"{gib(estimate.headroom_gib)}; fits with probability {probability(estimate.fit_probability)}"),
        ("throughput", rate),
        ("step time", step_time(estimate)),
        ("utilization", f"{compute(estimate)} per GPU, {utilization(estimate)} of peak (MFU)"),
        ("price", "no on-demand price known" if price is None else f"{price:,.2f} USD per hour"),
    ]
    if cost := cost_per_million(model, estimate):
        rows.append(("cost", cost))
    if estimate.days is not None:
        rows.append(("entire run", ", ".join(filter(None, (run_time(estimate), run_cost(estimate))))))
    rows.append(("effective time", f"{100 * estimate.effective.share:.1f} % of the elapsed time is in training steps"))
    yield from (f"  {name:<16}{value}" for name, value in rows)
    yield "In parentheses: 95 % of measured runs of this kind of code and plan."


def _learned(advice: Advice) -> Iterator[str]:
    """Estimate before and after the user's runs, and what was read of each."""
    learned = advice.learned
    if learned is not None:
        yield from (f"  {change.label}: {change.before} -> {change.after}" for change in learned.changes)
        for source, notes in learned.runs:
            yield f"Run: {source}. {' '.join(notes)}"


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


def _traced(advice: Advice) -> Iterator[str]:
    traced = advice.traced()
    if traced is not None:
        yield from str(traced).splitlines()


def _techniques(advice: Advice) -> Iterator[str]:
    for step in advice.steps:
        yield f"{step.order}. {step.title}: {step.decision}. {step.details}"


def _requirements(advice: Advice) -> Iterator[str]:
    """Requirements that are left to the user, then those that the generated cells meet."""
    done = [pitfall for pitfall in advice.pitfalls if pitfall.severity == "info"]
    yield from (f"- {pitfall.text}" for pitfall in advice.pitfalls if pitfall.severity != "info")
    if done:
        yield "Met by the generated cells, or for information:"
        yield from (f"- {pitfall.text}" for pitfall in done)


def _reference(reference: Reference | None) -> Iterator[str]:
    if reference is None:
        return
    fits = "fits" if reference.fits else "does not fit"
    yield f"{reference.summary} It {fits} by the cost model: it needs {reference.needed_gib:.1f} GiB per GPU."
    for difference in reference.differences:
        values = f"{difference.recommended} (reference: {difference.reference})"
        yield f"- {difference.setting}: {values}. {difference.because}"
    if reference.extrapolation:
        yield reference.extrapolation
