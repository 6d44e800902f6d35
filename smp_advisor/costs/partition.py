"""Partition of the model's blocks into pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model

__all__ = ["Stage", "stage_kinds", "stage_runs", "stages"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Contents of one pipeline stage."""

    index: int
    block_counts: tuple[int, ...]
    """Blocks of each of the model's groups, in their order."""
    first: bool
    """Whether the stage has the embedding."""
    last: bool
    """Whether the stage has the final norm, the head and the loss."""

    @property
    def layers(self) -> int:
        """Total number of blocks."""
        return sum(self.block_counts)

    @property
    def kind(self) -> tuple[tuple[int, ...], bool, bool]:
        """Stages of the same kind have the same costs."""
        return self.block_counts, self.first, self.last


@lru_cache(maxsize=4096)
def stages(model: Model, pipeline_parallel_degree: int) -> tuple[Stage, ...]:
    """Split the model's blocks over the stages: evenly if the degree divides their number, else by work.

    The last stage also computes the head, so it has fewer blocks. Remaining blocks are assigned to the middle stages,
    then to the first, which has the embedding. SMP v1 balances measured costs instead (``memory_weight``).
    """
    degree = pipeline_parallel_degree
    sizes = _balanced(model, degree)
    result = []
    position = 0
    starts = []
    total = 0
    for group in model.groups:
        starts.append((total, total + group.count))
        total += group.count
    for index in range(degree):
        size = sizes[index]
        counts = tuple(max(0, min(end, position + size) - max(start, position)) for start, end in starts)
        result.append(Stage(index=index, block_counts=counts, first=index == 0, last=index == degree - 1))
        position += size
    return tuple(result)


def _balanced(model: Model, degree: int) -> list[int]:
    """Blocks of each stage: equal if the degree divides their number, else fewer in the stage with the head."""
    if model.layer_count % degree == 0:
        return [model.layer_count // degree] * degree
    work = max(sum(m.flops_per_token for m in group.block.matmuls) for group in model.groups)
    head = 2 * model.shape.hidden * model.head.outputs / max(work, 1.0) if model.head.per_token else 0.0
    last = model.layer_count if degree == 1 else max(1, round((model.layer_count + head) / degree - head))
    base, remainder = divmod(model.layer_count - last, max(degree - 1, 1))
    # The first stage has the embedding, so the middle stages receive remaining blocks before it.
    extra = set([*range(1, degree - 1), 0][:remainder])
    return [*(base + (index in extra) for index in range(degree - 1)), last]


@lru_cache(maxsize=4096)
def stage_kinds(model: Model, pipeline_parallel_degree: int) -> tuple[Stage, ...]:
    """One stage of each kind. Their costs determine those of all stages."""
    unique: dict[tuple[tuple[int, ...], bool, bool], Stage] = {}
    for stage in stages(model, pipeline_parallel_degree):
        unique.setdefault(stage.kind, stage)
    return tuple(unique.values())


@lru_cache(maxsize=4096)
def stage_runs(model: Model, pipeline_parallel_degree: int) -> tuple[tuple[int, int], ...]:
    """(position in `stage_kinds`, number of consecutive stages of this kind), in the order of the stages."""
    kinds = {stage.kind: position for position, stage in enumerate(stage_kinds(model, pipeline_parallel_degree))}
    line = (kinds[stage.kind] for stage in stages(model, pipeline_parallel_degree))
    return tuple((kind, len(list(run))) for kind, run in groupby(line))
