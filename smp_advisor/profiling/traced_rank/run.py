"""Trace of one rank in a child process, and its comparison with the cost model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.estimate import CATEGORIES
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.memory import needed_bytes
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.description import GUARD_SECONDS, as_json, from_json
from smp_advisor.profiling.sandbox import Limits, progress, run_isolated
from smp_advisor.profiling.traced_rank.rank import Rank, rank_of
from smp_advisor.profiling.traced_rank.result import CategoryMemory, TracedRank

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import StageMemory
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["trace_described_rank", "trace_rank"]

_NOT_ALLOCATED = ("allocator_reserve", "context")
"""Categories of the cost model that are no tensors."""
_GIB = 2**30


def trace_rank(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    stage: int | None = None,
    module: Any = None,
    inputs: Any = None,
    memory_bytes: int | None = None,
    seconds: float = GUARD_SECONDS,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> TracedRank:
    """Trace a training step of one GPU in the plan's own layout, on the full model, without allocating it.

    The model is divided by PyTorch's own parallelism under a process group of the job's size: ``fully_shard`` (FSDP2)
    or FullyShardedDataParallel (FSDP1), the buckets of DistributedDataParallel, distributed tensors, pipeline stages,
    and activation checkpointing. All tensors are fake.

    Parameters
    ----------
    stage
        Pipeline stage. None traces the stage for which the cost model estimates the most memory.
    module
        The ``torch.nn.Module`` of the model, if it has no transformers configuration. It is not modified.
    inputs
        As for `smp_advisor.profile`.
    memory_bytes, seconds, on_line, on_progress
        Limits and callbacks of the child process, as for `smp_advisor.profile`.

    Raises
    ------
    ProfileError
        PyTorch cannot express the plan, or the trace fails.
    PlanError
        The plan does not match the cluster, the model or the job.
    """
    if type(seconds) not in {int, float} or not seconds > 0:
        raise ProfileError(f"seconds must be a positive number, not {seconds!r}.")
    memories = estimate(model, cluster, job, plan).memory.stages
    if stage is None:
        stage = max(range(len(memories)), key=lambda index: memories[index].total_gib)
    rank, differences = rank_of(model, cluster, job, plan, stage)
    if module is None and model.config_json == "{}":
        raise ProfileError(f"{model.name} has no configuration to build it from: pass the module itself.")
    callbacks: dict[str, Any] = {"on_line": on_line, "on_progress": on_progress}
    limits, what = Limits(memory_bytes=memory_bytes, seconds=seconds), "the trace of a rank"
    if module is None and inputs is None and "torch" not in sys.modules:
        target = "smp_advisor.profiling.traced_rank.run:trace_described_rank"
        traced = run_isolated(target, as_json(model), rank.as_dict(), what=what, limits=limits, **callbacks)
    else:
        profiled = model if module is None else module
        traced = run_isolated(_trace, profiled, rank, inputs, what=what, limits=limits, **callbacks)
    categories = _categories(memories[stage], traced["by_category"])
    sizes: dict[str, Floats] = {category.name: category.traced_gib for category in categories}
    sizes["context"] = memories[stage].context_gib
    return TracedRank(
        name=model.name,
        plan=plan,
        stage=stage,
        stages=rank.stages,
        rank=rank.first_rank,
        world=rank.world,
        phase=traced["phase"],
        categories=categories,
        expressed=tuple(traced["expressed"]),
        not_traced=(*differences, *traced["not_traced"]),
        operations=traced["operations"],
        needed_gib=float(needed_bytes(sizes)),
        usable_gib=cluster.instance.usable_gpu_memory_gib,
    )


def _categories(memory: StageMemory, traced: dict[str, int]) -> tuple[CategoryMemory, ...]:
    formula = {name.removesuffix("_gib"): float(getattr(memory, name)) for name in CATEGORIES}
    names = [name for name in formula if name not in _NOT_ALLOCATED]
    names += [name for name in traced if name not in names]
    return tuple(
        CategoryMemory(name=name, formula_gib=formula.get(name, 0.0), traced_gib=traced.get(name, 0) / _GIB)
        for name in names
    )


def trace_described_rank(model: Any, rank: dict[str, Any]) -> dict[str, Any]:
    """Trace a model described in JSON; called in a fresh interpreter."""
    return _trace(from_json(model), Rank.from_dict(rank), None)


def _trace(model: Any, rank: Rank, inputs: Any) -> dict[str, Any]:
    """Build the model and trace the step; runs in the child process."""
    from smp_advisor.profiling.patching import quiet
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.traced_rank.step import RankStep, fake_process_group

    progress(0.0, 1.0, "building the model")
    with quiet(), fake_process_group(rank.world, rank.process):
        step = RankStep.of(read_model(model), rank, inputs)
        progress(0.1, 1.0, "tracing a training step")
        peak = step.run()
    return {
        "phase": peak.phase,
        "by_category": peak.by_category,
        "expressed": list(step.expressed),
        "not_traced": list(step.not_traced),
        "operations": step.operations,
    }
