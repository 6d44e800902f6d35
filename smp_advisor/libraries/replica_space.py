"""All plans of a library whose data-parallel ranks are single GPUs: FSDP, DDP, Training Compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries import axes
from smp_advisor.libraries.columns import encoded
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.space import Space

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Checkpointing
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["replica_space"]


def replica_space(
    library: str, model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any], strategies: Sequence[str] = ()
) -> Space:
    """All plans of a library in which each GPU processes batches of its own.

    Axes: batch, gradient accumulation, checkpointing and sharding strategy, if its plans have them.

    Parameters
    ----------
    strategies
        Sharding strategies to try if none is pinned.
    """
    names = plan_fields(library)
    accumulates = "gradient_accumulation_steps" in names
    pairs = axes.accumulated_batches(job, model, cluster.gpus, pins if accumulates else {**pins, _STEPS: 1})
    checkpointing: list[Checkpointing] = [False, "each"] if _CHECKPOINTING in names else [False]
    rows = axes.crossed(pairs, [choice for choice in axes.memory_choices(checkpointing, pins) if not choice[1]])
    columns = {
        "batch_size": rows[:, 0] // rows[:, 1],
        _STEPS: rows[:, 1],
        _CHECKPOINTING: rows[:, 2],
    }
    fields = [name for name in (*columns, "sharding_strategy") if name in names]
    candidates = [pins["sharding_strategy"]] if "sharding_strategy" in pins else strategies
    blocks = [{**columns, "sharding_strategy": encoded("sharding_strategy", strategy)} for strategy in candidates]
    shared = {"precision": job.precision, **{name: value for name, value in pins.items() if name not in fields}}
    return Space.of_blocks(library, cluster, job, fields, [(len(rows), block) for block in blocks or [columns]], shared)


_STEPS = "gradient_accumulation_steps"
_CHECKPOINTING = "activation_checkpointing"
