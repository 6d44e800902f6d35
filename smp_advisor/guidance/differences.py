"""Differences between a plan and a reference configuration, each argued by an estimate with the reference's setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.practices import Difference
from smp_advisor.guidance.what_if import evaluate, vary
from smp_advisor.libraries.groups import samples_per_tensor_parallel_group, shard_degree
from smp_advisor.libraries.library import get_library, supports_tensor_parallelism
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import SAME, compared, duration, fit
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.reference import ReferenceRow
    from smp_advisor.guidance.what_if import PlannedRun
    from smp_advisor.libraries.plan import Plan

_TIME_PARTS = {
    "forward_seconds": "forward passes",
    "backward_seconds": "backward passes",
    "recomputation_seconds": "recomputation",
    "tensor_parallel_seconds": "the all-reduces of tensor parallelism",
    "pipeline_bubble_seconds": "waiting in the pipeline",
    "data_parallel_seconds": "reductions and gathers between replicas",
    "optimizer_seconds": "the optimizer",
    "offload_seconds": "host transfers",
    "allocator_seconds": "the allocator, near full memory",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """One compared setting."""

    name: str
    reference: object
    recommended: object
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the plan that take the reference's value; empty if the user's request determines the setting."""
    because: str = ""
    """Reason, if the user's request determines the setting."""


def differences(run: PlannedRun, row: ReferenceRow) -> tuple[Difference, ...]:
    """The settings in which a plan differs from a row, in the row's order."""
    settings = [
        setting
        for name in row.compared
        for setting in [_SPECIAL.get(name, _field)(run, row, name)]
        if setting is not None and setting.reference != setting.recommended
    ]
    comparisons = {setting.name: vary(run, **setting.changes) for setting in settings if setting.changes}
    estimates = evaluate(run.model, comparisons)

    def because(setting: _Setting) -> str:
        if setting.because:
            return setting.because
        comparison, estimate = comparisons[setting.name], estimates.get(setting.name)
        if estimate is None:
            return f"The reference's setting is not possible here: {comparison.obstacle}"
        sentences = (
            f"With the reference's setting{comparison.aside}, the plan {compared(run.estimate, estimate)}.",
            f"It {fit(estimate, run.min_fit_probability)}.",
            _largest_change(run.estimate, estimate),
        )
        return " ".join(filter(None, sentences))

    return tuple(
        Difference(
            setting=setting.name,
            reference=_shown(setting.reference),
            recommended=_shown(setting.recommended),
            because=because(setting),
        )
        for setting in settings
    )


def _shown(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _requested(name: str, reference: str, recommended: str, counts: tuple[str, str] | None = None) -> _Setting:
    because = f"As requested: {counts[1]} (vs {counts[0]})." if counts else "As requested."
    return _Setting(name=name.capitalize(), reference=reference, recommended=recommended, because=because)


def _model(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting | None:
    if row.model.shape == run.model.shape:
        return None
    before, after = format_count(row.model.parameter_count), format_count(run.model.parameter_count)
    counts = (before, f"{after} parameters") if before != after else None
    return _requested(name, row.model.name, run.model.name, counts)


def _sequence_length(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting:
    before, after = row.job.sequence_length, run.sequence_length
    return _requested(name, str(before), str(after), (f"{before:,}", f"{after:,} tokens per sample"))


def _cluster(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting:
    before, after = (f"{place.nodes} x {place.instance.name}" for place in (row.cluster, run.cluster))
    same = row.cluster.gpus == run.cluster.gpus
    return _requested(name, before, after, None if same else (f"{row.cluster.gpus:,}", f"{run.cluster.gpus:,} GPUs"))


def _precision(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting:
    return _requested(name, row.job.precision, run.job.precision)


def _field(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting | None:
    """Comparison of a field of the plan."""
    record = get_library(run.plan.library)
    if name == "tensor_parallel_degree" and not supports_tensor_parallelism(run.model.family, record.name):
        return None  # the library would not divide this model's layers

    def value(plan: Plan, cluster: Cluster) -> Any:
        return shard_degree(plan, cluster) if name == record.shard_field else getattr(plan, name)

    reference = value(row.plan, row.cluster)
    return _setting(run, name, reference, value(run.plan, run.cluster), {name: reference})


def _setting(run: PlannedRun, name: str, reference: object, recommended: object, changes: dict[str, Any]) -> _Setting:
    parameter = schema(run.plan.library).described(name)
    title = parameter.title if parameter else name.capitalize()
    return _Setting(name=title, reference=reference, recommended=recommended, changes=changes)


def _state_sharding(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting:
    def words(plan: Plan) -> str:
        if plan.sharded_data_parallel_degree > 1:
            return f"sharded data parallel degree {plan.sharded_data_parallel_degree}"
        return "optimizer state" if plan.shard_optimizer_state else "none"

    changes = {
        "shard_optimizer_state": row.plan.shard_optimizer_state,
        "sharded_data_parallel_degree": row.plan.sharded_data_parallel_degree,
    }
    return _setting(run, name, words(row.plan), words(run.plan), changes)


def _samples_per_replica(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting | None:
    plan = run.plan
    reference = samples_per_tensor_parallel_group(row.plan)
    # A number that the plan's microbatches do not divide cannot be tried by itself.
    if run.job.global_batch_size is not None or reference % (plan.batches_per_group * plan.microbatches):
        return None
    changes = {"batch_size": reference // plan.batches_per_group}
    return _setting(run, name, reference, samples_per_tensor_parallel_group(plan), changes)


def _active_microbatches(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting | None:
    if run.plan.pipeline_parallel_degree == 1 or row.plan.pipeline_parallel_degree == 1:
        return None
    reference = row.plan.active_in_flight
    return _setting(run, name, reference, run.plan.active_in_flight, {name: min(reference, run.plan.microbatches)})


_SPECIAL: dict[str, Callable[[PlannedRun, ReferenceRow, str], _Setting | None]] = {
    "model": _model,
    "sequence length": _sequence_length,
    "cluster": _cluster,
    "precision": _precision,
    "state sharding": _state_sharding,
    "samples per replica": _samples_per_replica,
    "active_microbatches": _active_microbatches,
}
"""Settings that are not simply a field of the plan. Every other name of `ReferenceRow.compared` is a field."""


def _largest_change(current: Estimate, alternative: Estimate) -> str:
    """The part of the step with most of the change in step time; empty if the time or the batch does not compare."""
    if current.global_batch_size != alternative.global_batch_size:
        return ""
    total = alternative.step_seconds - current.step_seconds
    if abs(total) < SAME * current.step_seconds:
        return ""
    sign = 1 if total > 0 else -1
    part = max(_TIME_PARTS, key=lambda name: sign * (getattr(alternative.time, name) - getattr(current.time, name)))
    before = duration(current, getattr(current.time, part))
    after = duration(alternative, getattr(alternative.time, part))
    return "" if before == after else f"Most of the change is in {_TIME_PARTS[part]}: {after}, vs {before}."
