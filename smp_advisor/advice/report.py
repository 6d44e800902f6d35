"""An advice in words: any of its plans explained, and the report for terminals, logs and screen readers."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.advice.choice import batch_reason, certainty, low_utilisation
from smp_advisor.advice.explanation import explain
from smp_advisor.advice.ladder import Ladder, climb, ladder_text, unused_lines, unused_techniques
from smp_advisor.advice.practices import Reference, pitfalls
from smp_advisor.advice.rank_map import rank_map
from smp_advisor.advice.reference import nearest_reference
from smp_advisor.advice.variants import PlannedRun
from smp_advisor.core.words import plural
from smp_advisor.costs import Estimate
from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.costs.estimate import CATEGORIES
from smp_advisor.costs.figures import figures_of
from smp_advisor.costs.guesses import assumed
from smp_advisor.costs.wording import (
    fit,
    fits,
    gives_back,
    global_batch,
    overhead_notes,
    probability,
    run_cost,
    run_time,
    spare,
)
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan, check_against, schema
from smp_advisor.libraries.groups import data_parallel_degree, reduced_data_parallel_degree
from smp_advisor.libraries.library import get_library, plan_fields
from smp_advisor.search.search import listed_plans
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.workload import Job, Model


def planned(advice: Recommendation, job: Job, plan: Plan, estimate: Estimate) -> PlannedRun:
    """Return a plan on the advice's cluster with the terms of its request."""
    return PlannedRun(
        model=advice.model,
        cluster=advice.cluster,
        job=job,
        plan=plan,
        estimate=estimate,
        min_fit_probability=advice.min_fit_probability,
        objective=advice.objective,
        pins=frozenset(advice.request.pins),
    )


def explained(advice: Recommendation, job: Job, plan: Plan, estimate: Estimate, because: str) -> Recommendation:
    """Return the advice with another plan, its reasons, and `because` as its origin; what the search compared stays."""
    if plan == advice.plan and job == advice.job:
        return advice
    run = planned(advice, job, plan, estimate)
    utilisation = low_utilisation(estimate)
    unchanged = tuple(text for text in advice.warnings if text != low_utilisation(advice.estimate))
    return replace(
        advice,
        job=job,
        plan=plan,
        estimate=estimate,
        steps=explain(run),
        pitfalls=pitfalls(run, script_is_generated=advice.script is None),
        reference=nearest_reference(run),
        because=because,
        warnings=(*unchanged, utilisation) if utilisation else unchanged,
    )


def plan_of(advice: Recommendation, plan: Plan | int | None) -> Plan:
    """Return a plan for the advice's cluster: one of the user's, the row of an alternative, or the recommended one."""
    if plan is None or plan == advice.plan:
        return advice.plan
    if isinstance(plan, int):
        plans = listed_plans(advice.result)
        if isinstance(plan, bool) or not 0 <= plan < len(plans):
            raise PlanError(f"The alternatives have the rows 0 to {len(plans) - 1}, not {plan!r}.")
        return plans[plan]
    check_against(plan, advice.cluster, advice.model)
    return plan


def ladder_of(advice: Recommendation, plan: Plan | int | None = None) -> Ladder:
    """Return the ladder of a plan, see `plan_of`."""
    chosen = plan_of(advice, plan)
    own = chosen == advice.plan
    value = advice.estimate if own else estimate_plan(advice.model, advice.cluster, advice.job, chosen)
    run = planned(advice, advice.job, chosen, value)
    return climb(run, advice.steps if own and advice.steps else explain(run, unused_techniques(run)))


_WIDTH = 100


def report(advice: Recommendation, *, details: bool = False) -> str:
    """The verdict, the ladder and the reasons; with `details`, every figure, setting, comparison and assumption."""
    return "\n\n".join(
        "\n".join([title, "-" * min(len(title), _WIDTH), *map(_wrapped, lines)])
        for title, lines in sections(advice, details=details)
    )


def sections(advice: Recommendation, *, details: bool = False) -> list[tuple[str, list[str]]]:
    """Return the title and lines of each section of `report`. Lines that start with two spaces are rows of a table."""
    ladder, place = ladder_of(advice), f"{advice.cluster.nodes} x {advice.cluster.instance.name}"
    value, least = advice.estimate, advice.min_fit_probability
    is_fit = f"fits ({probability(value.fit_probability)} likely)" if fits(value, least) else fit(value, least)
    verdict = f"{advice.model.name} on {place}: {is_fit}"
    rungs = ladder_text(ladder, figures=False).splitlines()
    result = [
        (verdict, list(_summary(advice))),
        ("Techniques in the order of AWS's best practices, each added to those above", rungs),
        ("Why", list(_why(advice, ladder))),
    ]
    if not details:
        more = "Every figure, comparison, requirement and assumption: advice.report(details=True)."
        return [*((title, lines) for title, lines in result if lines), ("Details", [more])]
    result += [("", []), *_details(advice, ladder)]
    return [(title or "Details", lines) for title, lines in result if lines or not title]


def _wrapped(line: str) -> str:
    if line.startswith("  "):  # tables keep their columns
        return line
    # A number keeps its unit: textwrap does not break at no-break spaces.
    unbroken = re.sub(r"(\d) (%|GiB|s\b|ms\b|B\b|M\b)", "\\1\xa0\\2", line)
    filled = textwrap.fill(unbroken, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return filled.replace("\xa0", " ")


def _summary(advice: Recommendation) -> Iterator[str]:
    """Requested settings, library, batch, speed, and the certainty of the choice."""
    estimate = advice.estimate
    sizes = advice.sizes
    wishes = [*advice.requested, *([sizes.limits.words] if sizes is not None and sizes.limits else [])]
    if wishes:
        yield f"Requested: {'; '.join(wishes)}."
    title = get_library(advice.plan.library).title
    yield f"Library: {advice.library_because or f'{title}, as requested.'}"
    yield from (f"- {sentence}" for sentence in advice.library_comparisons)
    yield f"Global batch: {batch_reason(advice.model, estimate, advice.decision.batch)}"
    degree, replicas = (of(advice.plan, advice.cluster) for of in (data_parallel_degree, reduced_data_parallel_degree))
    group = f"{degree:,}" if replicas == degree else f"{degree:,} GPUs in {plural(replicas, 'replica')}"
    yield f"Data-parallel degree: {group} (each GPU: advice.ranks())."
    if advice.learned is not None:
        count = len(advice.learned.runs)
        yield f"Calibrated with {count} {'runs' if count > 1 else 'run'} of yours."
    if sizes is not None:
        yield f"Cluster: {' '.join(sizes.lines())}"
    elif estimate.days is not None:
        yield f"Entire run: {', '.join(filter(None, (run_time(estimate), run_cost(estimate))))}."
    if advice.objective in {"throughput", "cost"}:
        yield certainty(advice.decision)
    yield from advice.warnings


def _why(advice: Recommendation, ladder: Ladder) -> Iterator[str]:
    """Yield a short paragraph per technique of the plan, and one line per technique that it does not use."""
    yield from (f"- {step.title}. {step.because}" for step in advice.steps if step.decision == "used")
    lines = unused_lines(ladder)
    if lines:
        yield "Not used:"
        yield from (f"- {line}" for line in lines)


def _details(advice: Recommendation, ladder: Ladder) -> list[tuple[str, list[str]]]:
    reference = advice.reference
    techniques = (f"{step.order}. {step.title}: {step.decision}. {step.details}" for step in advice.steps)
    calibration: list[str] = []
    if (learned := advice.learned) is not None:
        calibration += [f"  {label}: {before} -> {after}" for label, before, after in learned.changes]
        calibration += [f"Run: {source}. {' '.join(notes)}" for source, notes in learned.runs]
    header = [advice.model.summary, advice.cluster.summary]
    header += [f"Defaults: {'; '.join(advice.defaults)}."] if advice.defaults else []
    header += [f"Library: {advice.library_because}"] if advice.library_because else []
    header += [*(f"- {sentence}" for sentence in advice.library_comparisons), advice.because]
    sections = (
        ("Model and cluster", header),
        ("Compared clusters", () if advice.sizes is None else advice.sizes.rows()),
        ("Configuration", _plan(advice.model, advice.job, advice.plan, advice.estimate)),
        ("Figures", _figures(advice.model, advice.estimate)),
        ("Calibration with your runs", calibration),
        ("Memory per GPU", _memory(advice.estimate)),
        ("Effective time", overhead_notes(advice.estimate)),
        ("Ladder", str(ladder).splitlines()),
        ("Techniques", techniques),
        ("Ranks", str(rank_map(advice.plan, advice.cluster)).splitlines()),
        (f"Nearest AWS reference: {reference.name if reference else ''}", _reference(reference)),
        ("Requirements for your script", _requirements(advice)),
        ("Assumptions", assumed(advice.model, advice.cluster, advice.job, advice.estimate)),
    )
    return [(title, list(lines)) for title, lines in sections]


def _plan(model: Model, job: Job, plan: Plan, estimate: Estimate) -> Iterator[str]:
    record, parameters, fields = get_library(plan.library), schema(plan.library), plan_fields(plan.library)
    names = record.reported or [
        parameter.key for parameter in (*parameters.parameters, *parameters.settings) if parameter.audience == "user"
    ]
    rows: list[tuple[str, object]] = []
    for name in names:
        parameter, value = parameters.described(name), getattr(plan, name, None)
        if name not in fields or parameter is None or value is None:
            continue
        if name == "batch_size" and plan.prescaled_batch:
            value = f"{value} per tensor-parallel group"
        elif isinstance(value, bool):
            value = "none" if parameter.type == "str" and not value else "yes" if value else "no"
        rows.append((parameter.title.lower(), value))
    for name, value in job.training_settings().items():
        rows.append((training_settings()[name].title.lower(), "on" if value is True else value))
    rows.append(("global batch", global_batch(model, estimate)))
    width = max(30, *(len(name) + 2 for name, _ in rows))
    yield from (f"  {name:<{width}}{value}" for name, value in rows)


def _figures(model: Model, estimate: Estimate) -> Iterator[str]:
    """Yield one row per figure; in parentheses its interval."""
    rows = [(figure.label, f"{figure.text} {figure.note}".rstrip()) for figure in figures_of(model, estimate).values()]
    rows.insert(1, ("Probability of the fit", probability(estimate.fit_probability)))
    if gives_back(estimate):
        rows.insert(1, ("Kept by PyTorch", spare(estimate)))
    width = 2 + max(len(label) for label, _ in rows)
    yield from (f"  {label:<{width}}{text}" for label, text in rows)
    yield "In parentheses: 95 % of measured runs of this kind of code and plan."


def _memory(estimate: Estimate) -> Iterator[str]:
    stages, peak = estimate.memory.stages, estimate.memory.peak
    if len(stages) > 1:
        yield f"Stage {peak.stage} of {len(stages)} has the highest peak ({peak.layers} layers):"
    for name in CATEGORIES:
        value = getattr(peak, name)
        if value >= 0.005:
            yield f"  {name.removesuffix('_gib').replace('_', ' '):<20}{value:>8.2f} GiB"
    yield f"  {'total':<20}{peak.total_gib:>8.2f} GiB"


def _requirements(advice: Recommendation) -> Iterator[str]:
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
