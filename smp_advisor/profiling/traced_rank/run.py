"""Trace of one rank in a child process, and its comparison with the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.estimate import CATEGORIES
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.memory import needed_bytes
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.result_html import NotebookResult, box, table
from smp_advisor.profiling.sandbox import GUARD_SECONDS, Limits, progress, run_isolated
from smp_advisor.profiling.traced_rank.rank import rank_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import StageMemory
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.traced_rank.rank import Rank
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["CategoryMemory", "TracedRank", "trace_rank"]


_TOLERANCE = 0.1
"""Relative difference that the summary calls agreement."""
_SHOWN_GIB = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoryMemory:
    """Memory of one category at the peak, GiB."""

    name: str
    """A category of `StageMemory` without its unit, or ``inputs``."""
    formula_gib: float
    traced_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRank(NotebookResult):
    """Peak memory of one GPU, traced operator by operator on the full model in the plan's own layout.

    Both totals are allocated tensors: without the memory that the allocator reserves, and without the CUDA context.
    """

    name: str
    """The model's."""
    plan: Plan
    stage: int
    """Pipeline stage, from 0."""
    stages: int
    rank: int
    """Global rank, the first of the stage."""
    world: int
    """GPUs of the job."""
    phase: str
    """Part of the step with the peak: ``forward``, ``backward`` or ``optimizer``."""
    categories: tuple[CategoryMemory, ...]
    expressed: tuple[str, ...]
    """How PyTorch expressed the plan, one phrase each."""
    not_traced: tuple[str, ...]
    """Parts of the plan that the trace left out or replaced, one sentence each."""
    operations: int
    needed_gib: float = 0.0
    """Memory that the GPU must have for the traced tensors, with fragmentation and CUDA context."""
    usable_gib: float = 0.0
    """Memory that a process can use on the GPU."""

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

    @property
    def fits(self) -> bool:
        """Whether the traced tensors fit, with fragmentation and CUDA context."""
        return self.needed_gib <= self.usable_gib

    @property
    def agrees(self) -> bool:
        """Whether formula and trace differ by at most 10 %."""
        return abs(self.difference) <= _TOLERANCE

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        place = f", stage {self.stage} of {self.stages}" if self.stages > 1 else ""
        over = f" The trace needs {self.needed_gib:.1f} GiB, over the {self.usable_gib:.1f} GiB available."
        text = f"{self.name}{place}: {self.comparison} ({100 * self.difference:+.1f} %)."
        return text if self.fits else text + over

    @property
    def comparison(self) -> str:
        """Both totals: "formula 16.4, traced 15.0 GiB per GPU"."""
        return f"formula {_amount(self.formula_gib)}, traced {_amount(self.traced_gib)} GiB per GPU"

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each part of the result."""
        rows = [("Peak", f"{_PHASES[self.phase]}, rank {self.rank:,} of {self.world:,} GPUs")]
        outcome = "fits" if self.fits else "does not fit"
        needed = f"{self.needed_gib:.1f} of {self.usable_gib:.1f} GiB usable, with fragmentation and CUDA context"
        rows.append(("Needed", f"{needed}: {outcome}"))
        rows += [("Layout", phrase) for phrase in self.expressed]
        return (*rows, *(("Not traced", sentence) for sentence in self.not_traced))

    @property
    def rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """Category, formula, trace and difference in GiB, as text; categories without memory are left out."""
        shown = [row for row in self.categories if max(row.formula_gib, row.traced_gib) >= _SHOWN_GIB]
        entries = [(row.name.replace("_", " "), row.formula_gib, row.traced_gib) for row in shown]
        entries.append(("total", self.formula_gib, self.traced_gib))
        return tuple((name, f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}") for name, a, b in entries)

    def as_html(self) -> str:
        """HTML form for a notebook."""
        return box(self.summary, table(self.rows, _HEADS), table(self.findings))

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        lines = [f"  {name:<16}{a:>10}{b:>10}{c:>12}" for name, a, b, c in (_TEXT_HEADS, *self.rows)]
        return "\n".join([self.summary, *lines, *(f"  {label}: {text}" for label, text in self.findings)])


_HEADS = ("Memory at the peak", "Formula, GiB", "Traced, GiB", "Difference, GiB")
_TEXT_HEADS = ("GiB per GPU", "formula", "traced", "difference")
_PHASES = {"forward": "in the forward pass", "backward": "in the backward pass", "optimizer": "in the optimizer step"}


def _amount(gib: float) -> str:
    return f"{gib:.1f}" if gib >= 1 else f"{gib:.3f}"


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
