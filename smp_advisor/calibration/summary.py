"""Effect of measured runs: values that were read, estimates before and after, and the distance to the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from smp_advisor.calibration.texts import needed, step_time
from smp_advisor.costs.evaluate import estimate, trained
from smp_advisor.costs.learned_time import paces
from smp_advisor.costs.observation import predicted_seconds
from smp_advisor.costs.transfer import differences, targets
from smp_advisor.libraries.layout import layout_of_plan

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Change", "Summary", "summary"]

_QUANTITIES = {
    "compute": "Compute",
    "in_node": "Communication inside a node",
    "across_nodes": "Communication across nodes",
    "host": "Host, optimizer and copies",
}
_MOST_DIFFERENCES = 6


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure with its interval, before and after."""

    label: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Effect of the runs of a calibration on one plan."""

    runs: tuple[tuple[str, tuple[str, ...]], ...]
    """(source, what was read and how far it is from the plan) of each run."""
    changes: tuple[Change, ...]
    """Figures of the plan, and paces relative to published runs."""

    @property
    def headline(self) -> str:
        """Number of runs, and step time before and after."""
        count = f"{len(self.runs)} measured run{'s' if len(self.runs) > 1 else ''}"
        return f"{count}; {self.changes[0].label.lower()} {self.changes[0].before} -> {self.changes[0].after}"

    def __str__(self) -> str:
        lines = [f"{change.label}: {change.before} -> {change.after}" for change in self.changes]
        for source, notes in self.runs:
            lines += [f"Run: {source}", *(f"  {note}" for note in notes)]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 (IPython's signature)
        printer.text(str(self))

    def _repr_html_(self) -> str:
        cell = 'style="text-align:left;padding:2px 14px 2px 0"'
        rows = "".join(
            f"<tr><td {cell}>{escape(c.label)}</td><td {cell}>{escape(c.before)}</td>"
            f"<td {cell}><b>{escape(c.after)}</b></td></tr>"
            for c in self.changes
        )
        head = "".join(
            f"<th {cell}>{title}</th>" for title in ("Figure (95 %)", "Published runs only", "With your runs")
        )
        runs = "".join(
            f"<li>{escape(source)}<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul></li>"
            for source, notes in self.runs
        )
        return f'<div class="smp-calibration"><table><tr>{head}</tr>{rows}</table><ul>{runs}</ul></div>'


def summary(model: Model, cluster: Cluster, job: Job, plan: Plan) -> Summary | None:
    """Effect of `job.calibration` on a plan; None without one."""
    if job.calibration is None:
        return None
    plain = replace(job, calibration=None)
    before, after = estimate(model, cluster, plain, plan), estimate(model, cluster, job, plan)
    layout = layout_of_plan(plan, job, cluster)
    here = targets(trained(model, job), cluster, job, layout).first
    runs = []
    for run in job.calibration.runs:
        apart = differences(run.conditions, here)
        listed = ", ".join(apart[:_MOST_DIFFERENCES]) + (", and others" if len(apart) > _MOST_DIFFERENCES else "")
        distance = f"The plan below differs from it in: {listed}." if apart else "It is the plan below."
        runs.append((run.source, (*run.notes, distance)))
    return Summary(
        runs=tuple(runs),
        changes=(*_figures(before, after), *_paces(model, cluster, job, plan)),
    )


def _figures(before: Estimate, after: Estimate) -> tuple[Change, ...]:
    return (
        Change(label="Step time", before=step_time(before), after=step_time(after)),
        Change(label="Memory needed per GPU", before=needed(before), after=needed(after)),
        Change(
            label="Probability to fit",
            before=_percent(before.fit_probability),
            after=_percent(after.fit_probability),
        ),
    )


def _percent(probability: float) -> str:
    if probability > 0.99:
        return "over 99 %"
    return "under 1 %" if probability < 0.01 else f"{100 * probability:.0f} %"


def _paces(model: Model, cluster: Cluster, job: Job, plan: Plan) -> tuple[Change, ...]:
    """Learned factors of the seconds of each quantity that the plan uses."""
    if job.calibration is None:
        return ()
    model, layout = trained(model, job), layout_of_plan(plan, job, cluster)
    seconds = predicted_seconds(model, cluster, job, layout)
    return tuple(
        Change(
            label=f"{_QUANTITIES[pace.name]}, time relative to prediction",
            before=f"1, {pace.before[0]:.2f} to {pace.before[1]:.2f}",
            after=f"{pace.factor:.2f}, {pace.after[0]:.2f} to {pace.after[1]:.2f}",
        )
        for pace in paces(job.calibration, model, cluster, job, layout, seconds)
    )
