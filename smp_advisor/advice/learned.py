"""Lessons of measured runs of the user: the figures of a plan before and after them, and how far each is from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.core.tables import Shown, Table
from smp_advisor.core.words import escape, listed, plural
from smp_advisor.costs.evaluate import estimate, trained
from smp_advisor.costs.learned import Targets, targets
from smp_advisor.costs.uncertainty import TWO_SIDED
from smp_advisor.costs.wording import probability, step_time
from smp_advisor.libraries.layout import layout_of_plan

if TYPE_CHECKING:
    from smp_advisor.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload import Job, Model


def needed(of: Estimate) -> str:
    """Required memory with its 95 % interval."""
    return f"{of.needed_gib:.1f} ± {TWO_SIDED * of.memory_error_gib:.1f} GiB"


@dataclass(frozen=True, kw_only=True)
class Summary(Shown):
    """Effect of the runs of a calibration on one plan."""

    runs: tuple[tuple[str, tuple[str, ...]], ...]
    """(source, what was read and how far it is from the plan) of each run."""
    changes: tuple[tuple[str, str, str], ...]
    """(label, before, after) of figures of the plan."""

    @property
    def headline(self) -> str:
        """Number of runs, and step time before and after."""
        label, before, after = self.changes[0]
        return f"{plural(len(self.runs), 'measured run')}; {label.lower()} {before} -> {after}"

    def __str__(self) -> str:
        lines = [f"{label}: {before} -> {after}" for label, before, after in self.changes]
        for source, notes in self.runs:
            lines += [f"Run: {source}", *(f"  {note}" for note in notes)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ("Figure (95 %)", "Published runs only", "With your runs")
        table = Table(columns=head, rows=self.changes).html()
        runs = "".join(
            f"<li>{escape(source)}<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul></li>"
            for source, notes in self.runs
        )
        return f'<div class="smp-calibration">{table}<ul>{runs}</ul></div>'


def summary(model: Model, cluster: Cluster, job: Job, plan: Plan) -> Summary | None:
    """Return the effect of `job.calibration` on a plan; None without one."""
    if job.calibration is None:
        return None
    plain = replace(job, calibration=None)
    before, after = estimate(model, cluster, plain, plan), estimate(model, cluster, job, plan)
    here = targets(trained(model, job), cluster, job, layout_of_plan(plan, job, cluster))
    runs = []
    for run in job.calibration.runs:
        apart = here.differing(Targets.of_runs([run]))
        distance = f"The plan below differs from it in: {listed(apart)}." if apart else "It is the plan below."
        runs.append((run.source, (*run.notes, distance)))
    return Summary(
        runs=tuple(runs),
        changes=(
            ("Step time", step_time(before), step_time(after)),
            ("Memory needed per GPU", needed(before), needed(after)),
            ("Probability to fit", probability(before.fit_probability), probability(after.fit_probability)),
        ),
    )
