"""Differences between the plan in the text and the recommended plan, and their gain."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.costs import estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.guidance import ranges
from smp_advisor.guidance.comparing import compared
from smp_advisor.guidance.step import Difference
from smp_advisor.guidance.wording import degree_of_change, fit, gib
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two plans for one model, compared by setting."""

    yours: Plan
    recommended: Plan
    your_estimate: Estimate
    recommended_estimate: Estimate
    differences: tuple[Difference, ...]
    """Settings that differ, each with the effect of changing only it in the first plan."""
    gain: str
    """The gain of all changes together, in a few sentences."""

    def __str__(self) -> str:
        rows = [
            f"  {row.setting}: {row.reference} -> {row.recommended}. {row.because}".rstrip() for row in self.differences
        ]
        return "\n".join(
            fill(row, 100, subsequent_indent="      " if row[0] == " " else "") for row in [self.gain, *rows]
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 (IPython's signature)
        printer.text(str(self))


def compare(
    model: Model,
    yours: Plan,
    recommended: Plan,
    *,
    cluster: Cluster,
    job: Job,
    recommended_cluster: Cluster | None = None,
    recommended_job: Job | None = None,
    min_fit_probability: float = 0.95,
) -> Comparison:
    """Compare a plan with the recommended one by the same cost model.

    Parameters
    ----------
    model
        What both train.
    yours, recommended
        The plans.
    cluster, job
        Of the first plan.
    recommended_cluster, recommended_job
        Of the second, where they are others.

    Raises
    ------
    AdvisorError
        Where one of the plans cannot run on its cluster.
    """
    there = recommended_cluster or cluster
    now = estimate_plan(model, cluster, job, yours)
    recommended_for = recommended_job or job
    trained = replace(recommended_for, precision=recommended.precision, fp8=bool(getattr(recommended, "fp8", False)))
    then = estimate_plan(model, there, trained, recommended)
    return Comparison(
        yours=yours,
        recommended=recommended,
        your_estimate=now,
        recommended_estimate=then,
        differences=_differences(model, yours, recommended, cluster, there, job, now),
        gain=_gain(model, now, then, min_fit_probability),
    )


def _differences(
    model: Model, yours: Plan, recommended: Plan, cluster: Cluster, there: Cluster, job: Job, now: Estimate
) -> tuple[Difference, ...]:
    rows = []
    if cluster != there:
        rows.append(_row("cluster", _hardware(cluster), _hardware(there), ""))
    if yours.library != recommended.library:
        recommended_library = f"{schema(recommended.library).name} {recommended.version}"
        rows.append(
            _row(
                "library",
                f"{schema(yours.library).name} {yours.version}",
                recommended_library,
                "Each library has its own settings.",
            )
        )
        return tuple(rows)
    names = [
        setting.name
        for setting in fields(yours)
        if setting.name != "library" and getattr(yours, setting.name) != getattr(recommended, setting.name)
    ]
    alone = {name: _alone(yours, cluster, {name: getattr(recommended, name)}) for name in names}
    # The cost model does not distinguish versions of a library.
    possible = {name: plan for name, plan in alone.items() if name != "version" and plan not in (None, yours)}
    estimates = (
        dict(zip(possible, estimate_many(model, cluster, job, list(possible.values())), strict=True))
        if possible
        else {}
    )
    for name in names:
        because = "Only together with the other changes."
        if name in estimates:
            because = f"Alone, the plan {compared(now, estimates[name])}."
        elif alone[name] is not None or name == "version":
            because = ""
        rows.append(_row(name, getattr(yours, name), getattr(recommended, name), because))
    return tuple(rows)


def _alone(plan: Plan, cluster: Cluster, changes: dict[str, Any]) -> Plan | None:
    try:
        changed = replace(plan, **changes)
        return None if any(True for _ in mismatches(changed, cluster)) else changed
    except AdvisorError:
        return None


def _row(setting: str, yours: object, recommended: object, because: str) -> Difference:
    return Difference(setting=setting, reference=_shown(yours), recommended=_shown(recommended), because=because)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "the default" if value is None else str(value)


def _hardware(cluster: Cluster) -> str:
    return f"{cluster.nodes} x {cluster.instance.name}"


def _gain(model: Model, now: Estimate, then: Estimate, least: float) -> str:
    before = ranges.throughput(now)
    speed = degree_of_change(now.samples_per_second, then.samples_per_second)
    sentences = [
        f"Your plan {fit(now, least)} (it needs {gib(now.needed_gib)} per GPU).",
        f"The recommended plan {fit(then, least)} (it needs {gib(then.needed_gib)} per GPU).",
        f"It processes {ranges.throughput(then)} instead of {before}: {speed}.",
    ]
    ours, theirs = ranges.cost_per_million(model, now), ranges.cost_per_million(model, then)
    if ours != theirs:
        sentences.append(f"It costs {theirs} instead of {ours}.")
    if now.global_batch_size != then.global_batch_size:
        sentences.append(
            f"Its global batch is {then.global_batch_size:,} samples instead of {now.global_batch_size:,}:"
            " adjust the learning rate."
        )
    if not now.fits and then.fits:
        sentences.append("The speeds are compared although your plan would run out of memory.")
    return " ".join(sentences)
