"""Trace of one rank in a child process, and its comparison with the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.estimate import CATEGORIES
from smp_advisor.costs.evaluate import estimate
from smp_advisor.sandbox import run_isolated

from .rank import rank_of

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import StageMemory
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    from .rank import Rank

__all__ = ["CategoryMemory", "TracedRank", "trace_rank"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoryMemory:
    """Memory of one category at the peak, GiB."""

    name: str
    """A category of `StageMemory` without its unit, or ``inputs``."""
    formula_gib: float
    traced_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRank:
    """Peak memory of one GPU, traced operator by operator on the full model in the plan's own layout.

    Both totals are allocated tensors: without the memory that the allocator reserves, and without the CUDA context.
    """

    name: str
    """The model's."""
    stage: int
    """Pipeline stage, from 0."""
    stages: int
    phase: str
    """Part of the step with the peak: ``forward``, ``backward`` or ``optimizer``."""
    categories: tuple[CategoryMemory, ...]
    expressed: tuple[str, ...]
    """How PyTorch expressed the plan, one phrase each."""
    not_traced: tuple[str, ...]
    """Parts of the plan that the trace left out or replaced, one sentence each."""

    @property
    def traced_gib(self) -> float:
        """Traced peak of allocated memory."""
        return sum(category.traced_gib for category in self.categories)

    @property
    def formula_gib(self) -> float:
        """The cost model's estimate of the same memory."""
        return sum(category.formula_gib for category in self.categories)

    @property
    def difference(self) -> float:
        """Traced over formula, minus 1."""
        return self.traced_gib / self.formula_gib - 1 if self.formula_gib else 0.0


_NOT_ALLOCATED = ("allocator_reserve", "context")
"""Categories of the cost model that are no tensors."""
_GIB = 2**30


def trace_rank(model: Model, cluster: Cluster, job: Job, plan: Plan) -> TracedRank:
    """Trace a step of one GPU of the pipeline stage with the most memory, in a child process, without allocating it."""
    memories = estimate(model, cluster, job, plan).memory.stages
    stage = max(range(len(memories)), key=lambda index: memories[index].total_gib)
    rank, differences = rank_of(model, cluster, job, plan, stage)
    traced = run_isolated(_trace, model, rank, what="the trace of a rank")
    return TracedRank(
        name=model.name,
        stage=stage,
        stages=rank.stages,
        phase=traced["phase"],
        categories=_categories(memories[stage], traced["by_category"]),
        expressed=tuple(traced["expressed"]),
        not_traced=(*differences, *traced["not_traced"]),
    )


def _categories(memory: StageMemory, traced: dict[str, int]) -> tuple[CategoryMemory, ...]:
    formula = {name.removesuffix("_gib"): float(getattr(memory, name)) for name in CATEGORIES}
    names = [name for name in formula if name not in _NOT_ALLOCATED]
    names += [name for name in traced if name not in names]
    return tuple(
        CategoryMemory(name=name, formula_gib=formula.get(name, 0.0), traced_gib=traced.get(name, 0) / _GIB)
        for name in names
    )


def _trace(model: Model, rank: Rank) -> dict[str, Any]:
    """Build the model and trace the step; runs in the child process."""
    from smp_advisor.profiling.patching import quiet
    from smp_advisor.profiling.profiled_model import read_model

    from .step import RankStep, fake_process_group

    with quiet(), fake_process_group(rank.world, rank.process):
        step = RankStep.of(read_model(model), rank)
        peak = step.run()
    return {
        "phase": peak.phase,
        "by_category": peak.by_category,
        "expressed": list(step.expressed),
        "not_traced": list(step.not_traced),
    }
