"""A planned run, and alternative plans with some settings changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.core.words import plural
from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.wording import fits
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan, mismatches
from smp_advisor.libraries.controls import completed_settings, dependent_settings, fields_of, shardable_gpus
from smp_advisor.libraries.groups import divisors, shard_degree
from smp_advisor.libraries.library import get_library, plan_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster import Cluster
    from smp_advisor.workload import Job, Model

    Key = TypeVar("Key")

    Plans = Mapping[str, "WhatIf"]
    Estimates = Mapping[str, Estimate]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A plan for a model on a cluster, with its estimate."""

    model: Model
    cluster: Cluster
    job: Job
    plan: Plan
    estimate: Estimate
    min_fit_probability: float = 0.95
    """Required probability of fitting."""
    objective: str = "throughput"
    pins: frozenset[str] = frozenset()
    """Fields of the plan that the user fixed."""

    @property
    def fits(self) -> bool:
        """Whether the plan fits with the required probability."""
        return fits(self.estimate, self.min_fit_probability)

    @property
    def sequence_length(self) -> int:
        """Tokens per sample of the model in this job."""
        return self.model.sequence_length(self.job.sequence_length)

    @property
    def data_parallel_degree(self) -> int:
        """Ranks of a data-parallel group: world / pipeline degree."""
        return self.cluster.gpus // self.plan.pipeline_parallel_degree

    @property
    def replicas(self) -> int:
        """Groups of GPUs that process different samples (reduced data-parallel degree)."""
        return self.data_parallel_degree // (self.plan.tensor_parallel_degree * self.plan.context_parallel_degree)


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """An alternative plan, or why there is none."""

    cluster: Cluster
    job: Job
    plan: Plan | None = None
    moved: tuple[str, ...] = ()
    """Other settings that had to change: "1 microbatch instead of 4"."""
    obstacle: str = ""
    """Sentence on why the library or the cluster allows no such plan; empty if there is a `plan`."""
    changes: Mapping[str, Any] | None = None
    """The changed settings, if sharding and microbatches may follow so that the plan fits (`without`)."""

    @property
    def aside(self) -> str:
        """The other changed settings in parentheses, after a space; empty if there are none."""
        return f" (with {', '.join(self.moved)})" if self.moved else ""

    def with_aside(self, *moved: str) -> WhatIf:
        """Return the same with further settings that had to change."""
        return replace(self, moved=(*self.moved, *moved))


def vary(run: PlannedRun, *, cluster: Cluster | None = None, keep_global_batch: bool = True, **changes: Any) -> WhatIf:
    """Change settings of the plan, at its global batch, and others only if the library requires it: `WhatIf.moved`."""
    place = cluster or run.cluster
    job = run.job if keep_global_batch else replace(run.job, global_batch_size=None)
    after = dependent_settings(
        run.plan,
        fields_of(run.plan),
        changes,
        model=run.model,
        job=job,
        cluster=place,
        global_batch_size=run.estimate.global_batch_size if keep_global_batch else None,
        cluster_before=run.cluster,
    )
    if after.obstacle:
        return WhatIf(cluster=place, job=job, obstacle=after.obstacle)
    settings, moved = completed_settings(run.plan, after.settings, place), after.moved
    if settings.get("bf16") and not settings["sharded_data_parallel_degree"] > 1:
        settings |= {"bf16": False, "fp16": True}
        job = replace(job, precision="fp16")
        moved = (*moved, "fp16, because bf16 needs sharded data parallelism")
    try:
        plan = replace(run.plan, **settings)
    except PlanError as error:
        return WhatIf(cluster=place, job=job, obstacle=str(error))
    for sentence in mismatches(plan, place, run.model, job):
        return WhatIf(cluster=place, job=job, obstacle=sentence)
    return WhatIf(cluster=place, job=job, plan=plan, moved=moved)


def without(run: PlannedRun, **changes: Any) -> WhatIf:
    """Return the plan without a technique; `evaluate_best` may raise its sharding, or it could only seem too large."""
    return replace(vary(run, **changes), changes=changes)


def evaluate_best(run: PlannedRun, comparisons: Mapping[Key, WhatIf]) -> tuple[dict[Key, WhatIf], dict[Key, Estimate]]:
    """Comparisons with their estimates. Of a plan `without` a technique, the fastest form that fits."""
    forms = {(key, n): form for key, value in comparisons.items() for n, form in enumerate(_forms(run, value))}
    estimates = evaluate(run.model, forms)
    best: dict[Key, tuple[bool, float]] = {}
    chosen: dict[Key, WhatIf] = dict(comparisons)
    values: dict[Key, Estimate] = {}
    for (key, number), value in estimates.items():
        fitting = fits(value, run.min_fit_probability)
        merit = (fitting, value.samples_per_second if fitting else -value.needed_gib)
        if key not in best or merit > best[key]:
            best[key], chosen[key], values[key] = merit, forms[key, number], value
    return chosen, values


def _forms(run: PlannedRun, comparison: WhatIf) -> list[WhatIf]:
    """Return a comparison, and its plan with higher degrees of sharding and other microbatches, if these may follow."""
    plan, changes = comparison.plan, comparison.changes
    if plan is None or changes is None:
        return [comparison]
    field, shards = get_library(plan.library).shard_field, shard_degree(plan, run.cluster)
    degrees: list[int] = []
    if field and field not in changes:
        degrees = [d for d in divisors(shardable_gpus(plan, fields_of(plan), run.cluster.gpus)) if d > shards]
        degrees = [*degrees[:2], *degrees[2:][-1:]]
    parts = next((name for name in _PARTS if name in plan_fields(plan.library) and name not in changes), "")
    numbers: list[int] = []
    if parts:
        current = getattr(plan, parts)
        samples = plan.batch_size * (1 if parts == "microbatches" else current)
        steps = {current // 2, samples, *(current << n for n in range(1, samples.bit_length()))}
        numbers = [n for n in divisors(samples) if n in steps]
    forms = [comparison]
    for degree in (None, *degrees):
        for number in (None, *numbers):
            more, asides = dict[str, Any](), list[str]()
            if degree is not None:
                more[field] = degree
                if getattr(plan, "shard_optimizer_state", False):
                    more["shard_optimizer_state"] = False  # excluded by sharded data parallelism
                asides.append(f"sharding over {degree} GPUs{f' instead of {shards}' if shards > 1 else ''}")
            if number is not None:
                more[parts] = number
                asides.append(f"{plural(number, *_PARTS[parts])} instead of {getattr(run.plan, parts)}")
            if more:
                forms.append(vary(run, **{**changes, **more}).with_aside(*asides))
    return forms


_PARTS = {
    "microbatches": ("microbatch", "microbatches"),
    "gradient_accumulation_steps": ("accumulated batch", "accumulated batches"),
}
"""Fields with the parts of a batch that run one after the other, and their names."""


def evaluate(model: Model, comparisons: Mapping[Key, WhatIf]) -> dict[Key, Estimate]:
    """Return estimates of the alternative plans; none for a missing plan."""
    return {
        key: estimate(model, comparison.cluster, comparison.job, comparison.plan)
        for key, comparison in comparisons.items()
        if comparison.plan is not None
    }
