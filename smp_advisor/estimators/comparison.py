"""From the plan that was read to the recommended one: what changes, and what it gains."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.costs import estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.guidance.amounts import unit, usd_per_million
from smp_advisor.guidance.step import Difference
from smp_advisor.guidance.wording import compared, degree_of_change, fit, gib, throughput, usd
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
    """Two plans for one model, setting by setting."""

    yours: Plan
    recommended: Plan
    your_estimate: Estimate
    recommended_estimate: Estimate
    differences: tuple[Difference, ...]
    """Each setting in which they differ, and what it would do to the first plan alone."""
    gain: str
    """What all of it together gains, a few sentences."""

    def __str__(self) -> str:
        rows = [
            f"  {one.setting}: {one.reference} -> {one.recommended}. {one.because}".rstrip() for one in self.differences
        ]
        return "\n".join([self.gain, *rows])


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
    """Set a plan against the recommended one by the same cost model.

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
    asked = recommended_job or job
    trained = replace(asked, precision=recommended.precision, fp8=bool(getattr(recommended, "fp8", False)))
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
    found = []
    if cluster != there:
        found.append(_row("cluster", _hardware(cluster), _hardware(there), ""))
    if yours.library != recommended.library:
        other = f"{schema(recommended.library).name} {recommended.version}"
        found.append(
            _row("library", f"{schema(yours.library).name} {yours.version}", other, "The settings are its own.")
        )
        return tuple(found)
    names = [
        one.name
        for one in fields(yours)
        if one.name != "library" and getattr(yours, one.name) != getattr(recommended, one.name)
    ]
    alone = {name: _alone(yours, cluster, {name: getattr(recommended, name)}) for name in names}
    # The cost model knows no difference between versions of one library.
    possible = {name: plan for name, plan in alone.items() if name != "version" and plan not in (None, yours)}
    estimates = (
        dict(zip(possible, estimate_many(model, cluster, job, list(possible.values())), strict=True))
        if possible
        else {}
    )
    for name in names:
        because = "Only together with the others."
        if name in estimates:
            because = f"Alone, the plan {compared(now, estimates[name])}."
        elif alone[name] is not None or name == "version":
            because = ""
        found.append(_row(name, getattr(yours, name), getattr(recommended, name), because))
    return tuple(found)


def _alone(plan: Plan, cluster: Cluster, changes: dict[str, Any]) -> Plan | None:
    try:
        other = replace(plan, **changes)
        return None if any(True for _ in mismatches(other, cluster)) else other
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
    before = throughput(now.samples_per_second)
    speed = degree_of_change(now.samples_per_second, then.samples_per_second)
    said = [
        f"Yours {fit(now, least)} (it needs {gib(now.needed_gib)} a GPU).",
        f"The recommended plan {fit(then, least)} (it needs {gib(then.needed_gib)} a GPU).",
        f"It processes {throughput(then.samples_per_second)} instead of {before} ({speed}).",
    ]
    ours, theirs = usd_per_million(model, now), usd_per_million(model, then)
    if ours is not None and theirs is not None and usd(ours) != usd(theirs):
        said.append(f"A million {unit(model)} cost {usd(theirs)} instead of {usd(ours)}.")
    if now.global_batch_size != then.global_batch_size:
        said.append(
            f"Its global batch is {then.global_batch_size:,} samples instead of {now.global_batch_size:,}:"
            " the learning rate goes with it."
        )
    if not now.fits and then.fits:
        said.append("Speed is compared although yours would run out of memory.")
    return " ".join(said)
