"""What a plan would be with one setting changed, everything else as equal as the library allows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.costs import estimate_many
from smp_advisor.errors import PlanError
from smp_advisor.guidance.what_if_accumulated import accumulated_settings
from smp_advisor.guidance.wording import plural
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.families import supports_prescaled_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Key = TypeVar("Key")

__all__ = ["WhatIf", "evaluate", "vary"]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Another plan to compare with, or why there is none."""

    cluster: Cluster
    job: Job
    plan: Plan | None = None
    moved: tuple[str, ...] = ()
    """Other settings that had to move: "1 microbatch instead of 4"."""
    obstacle: str = ""
    """Sentence on why the library or the cluster allows no such plan; empty where `plan` is given."""

    @property
    def aside(self) -> str:
        """The moved settings in parentheses, with a space before; empty where none moved."""
        return f" (with {', '.join(self.moved)})" if self.moved else ""


def vary(case: Case, *, cluster: Cluster | None = None, hold_global_batch: bool = True, **changes: Any) -> WhatIf:
    """Change settings of the plan and move others only where the library demands it.

    The global batch stays, so that step times compare: where the number of replicas changes, the batch of each does.
    What else had to move is listed in `WhatIf.moved`.

    Parameters
    ----------
    case
        Where it starts from.
    cluster
        Another cluster.
    hold_global_batch
        Whether the global batch stays. Otherwise each replica keeps its batch, and the job's global batch is waived.
    **changes
        Fields of `Plan`.
    """
    place = cluster or case.cluster
    job = case.job if hold_global_batch else replace(case.job, global_batch_size=None)
    if case.plan.library == "smp-v1":
        return _vary_smp_v1(case, place, job, changes, hold_global_batch=hold_global_batch)
    found = accumulated_settings(case, place, job, changes, hold_global_batch=hold_global_batch)
    return (
        WhatIf(cluster=place, job=job, obstacle=found) if isinstance(found, str) else _built(case, place, job, *found)
    )


def _vary_smp_v1(
    case: Case, place: Cluster, job: Job, changes: Mapping[str, Any], *, hold_global_batch: bool
) -> WhatIf:
    now = case.plan
    settings: dict[str, Any] = dict(changes)
    moved: list[str] = []

    def get(name: str) -> Any:
        return settings.get(name, getattr(now, name))

    tp, pp = get("tensor_parallel_degree"), get("pipeline_parallel_degree")
    if place.gpus % (tp * pp):
        return WhatIf(
            cluster=place,
            job=job,
            obstacle=f"{place.gpus} GPUs cannot be divided by {plural(tp, 'tensor-parallel rank')} x"
            f" {plural(pp, 'pipeline stage')}.",
        )
    if tp != now.tensor_parallel_degree and "prescaled_batch" not in changes:
        length = case.model.sequence_length(job.sequence_length)
        can = tp > 1 and get("optimize") == "speed" and length % tp == 0
        wanted = now.prescaled_batch or now.tensor_parallel_degree == 1
        settings["prescaled_batch"] = can and wanted and supports_prescaled_batch(case.model.family)

    if hold_global_batch and "batch_size" not in changes:
        copies = place.gpus // pp if not get("prescaled_batch") else place.gpus // (pp * tp)
        total = case.estimate.global_batch_size
        share, rest = divmod(total, copies)
        if rest or not share:
            if job.global_batch_size is not None:
                return WhatIf(
                    cluster=place,
                    job=job,
                    obstacle=f"The global batch of {total:,} samples cannot be divided by {copies} replicas.",
                )
            share = max(1, round(total / copies))
            moved.append(f"a global batch of {share * copies:,} samples instead of {total:,}")
        settings["batch_size"] = share
    _fit_schedule(now, settings, get, moved, place)
    if not get("activation_checkpointing") and get("offload_activations"):
        settings["offload_activations"] = False
        moved.append("offloading off, which needs checkpointing")
    if get("bf16") and get("sharded_data_parallel_degree") == 1:
        settings |= {"bf16": False, "fp16": True}
        job = replace(job, precision="fp16")
        moved.append("fp16, because bf16 needs sharded data parallelism")
    return _built(case, place, job, settings, tuple(moved))


def _fit_schedule(now: Plan, settings: dict[str, Any], get: Any, moved: list[str], place: Cluster) -> None:
    """Make microbatches divide the batch, active ones not exceed them, and shards divide the replicas."""
    batch, microbatches, pp = get("batch_size"), get("microbatches"), get("pipeline_parallel_degree")
    if batch % microbatches:
        fewer = max(m for m in range(1, microbatches) if batch % m == 0)
        settings["microbatches"] = fewer
        moved.append(f"{plural(fewer, 'microbatch', 'microbatches')} instead of {microbatches}")
        microbatches = fewer
    active = get("active_microbatches")
    if pp == 1:
        # Without a pipeline neither has an effect; the library's defaults are accepted with any other setting.
        settings |= {"active_microbatches": None, "pipeline": "interleaved"}
    elif get("pipeline") == "simple":
        settings["active_microbatches"] = microbatches
    elif active is not None and active > microbatches:
        settings["active_microbatches"] = microbatches
        moved.append(f"{plural(microbatches, 'active microbatch', 'active microbatches')} instead of {active}")
    replicas = place.gpus // (pp * get("tensor_parallel_degree"))
    shards = get("sharded_data_parallel_degree")
    if replicas % shards:
        fewer = max(d for d in range(1, shards) if replicas % d == 0)
        settings["sharded_data_parallel_degree"] = fewer
        moved.append(f"{plural(fewer, 'shard')} instead of {shards}")
    if now.default_partition is not None:
        settings["default_partition"] = min(now.default_partition, pp - 1)
    if replicas > 1:
        settings["ddp"] = True


def _built(case: Case, place: Cluster, job: Job, settings: dict[str, Any], moved: tuple[str, ...]) -> WhatIf:
    try:
        plan = replace(case.plan, **settings)
    except PlanError as error:
        return WhatIf(cluster=place, job=job, obstacle=str(error))
    for sentence in mismatches(plan, place, case.model, job):
        return WhatIf(cluster=place, job=job, obstacle=sentence)
    return WhatIf(cluster=place, job=job, plan=plan, moved=moved)


def evaluate(model: Model, questions: Mapping[Key, WhatIf]) -> dict[Key, Estimate]:
    """Estimates of all plans, those of one cluster and job together; a question without a plan has no answer."""
    groups: dict[tuple[Cluster, Job], list[tuple[Key, Plan]]] = defaultdict(list)
    for key, question in questions.items():
        if question.plan is not None:
            groups[question.cluster, question.job].append((key, question.plan))
    answers: dict[Key, Estimate] = {}
    for (cluster, job), asked in groups.items():
        found = estimate_many(model, cluster, job, [plan for _, plan in asked])
        answers.update(zip((key for key, _ in asked), found, strict=True))
    return answers
