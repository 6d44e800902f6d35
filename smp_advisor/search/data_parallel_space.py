"""Every plan without model parallelism on a cluster, as columns: FSDP, DDP, Training Compiler."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.layout import Layout, checkpoint_strategy
from smp_advisor.costs.recipe import amp, ddp, fully_sharded, over_frozen
from smp_advisor.costs.translation_sharded import PREFETCHED_UNITS
from smp_advisor.library.plan import plan_fields
from smp_advisor.library.schema import schema
from smp_advisor.search import axes
from smp_advisor.search.space import Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.recipe import Recipe
    from smp_advisor.library.plan import Checkpointing
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["enumerate_data_parallel"]

_COLUMNS = frozenset({"activation_checkpointing", "batch_size", "gradient_accumulation_steps", "sharding_strategy"})
"""Plan fields that a row decides; any other pinned field is passed on to the plan as it is."""


def _settings(at: Mapping[str, Any], *, library: str, precision: str, gpus: int) -> dict[str, Any]:
    """Fields of the plan of a row."""
    settings = {"precision": precision, "batch_size": at["batch_samples"] // at["microbatches"]}
    if library == "training-compiler":
        return settings
    settings |= {
        "gradient_accumulation_steps": at["microbatches"],
        "activation_checkpointing": checkpoint_strategy(at["checkpoint_layers"]),
    }
    if library == "fsdp":
        whole, freed = at["shard_degree"] == gpus, at["prefetched_units"] > 0
        settings["sharding_strategy"] = _STRATEGIES[whole, freed]
    return settings


_STRATEGIES = {
    (True, True): "full_shard",
    (True, False): "shard_grad_op",
    (False, True): "hybrid_shard",
    (False, False): "_hybrid_shard_zero2",
}
"""FSDP's strategies: whether all GPUs share the shards, and whether gathered parameters are freed after use."""


def enumerate_data_parallel(
    model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any], *, library: str
) -> Space:
    """All plans of a library whose GPUs each run whole replicas on batches of their own.

    Axes: batch, gradient accumulation and checkpointing (PyTorch's), sharding strategy (FSDP's).
    """
    stated = schema(library)
    if stated.setting("gradient_accumulation_steps") is None:
        pins = {**pins, "gradient_accumulation_steps": 1}
    pairs = axes.accumulated_batches(job, model, cluster.gpus, pins)
    strategies: list[Checkpointing] = (
        [False, "each"] if stated.setting("activation_checkpointing") is not None else [False]
    )
    rows = axes.crossed(pairs, [choice for choice in axes.memory_choices(strategies, pins) if not choice[1]])
    if library == "fsdp":
        parts = [_sharded(rows, job, one, cluster) for one in _strategies(cluster, pins)]
    else:
        recipe = ddp(job) if library == "ddp" else amp(job)
        parts = [_columns(rows, over_frozen(recipe, job))]
    extra = {name: value for name, value in pins.items() if name in plan_fields(library) - _COLUMNS}
    settings = partial(_settings, library=library, precision=job.precision, gpus=cluster.gpus)
    return Space(library=library, layout=Layout.concatenate(parts), settings=settings, extra=extra)


def _strategies(cluster: Cluster, pins: Mapping[str, Any]) -> list[str]:
    if "sharding_strategy" in pins:
        return [pins["sharding_strategy"]]
    # Within one node the hybrid strategies are the others under another name.
    return [name for (whole, _), name in _STRATEGIES.items() if whole or cluster.nodes > 1]


def _sharded(rows: axes.Ints, job: Job, strategy: str, cluster: Cluster) -> Layout:
    return _columns(
        rows,
        over_frozen(fully_sharded(job), job),
        shard_level=3,
        shard_degree=cluster.gpus_per_node if "hybrid" in strategy else cluster.gpus,
        prefetched_units=PREFETCHED_UNITS if strategy in {"full_shard", "hybrid_shard"} else 0,
        max_live_parameters=2**62,
    )


def _columns(rows: axes.Ints, recipe: Recipe, **columns: int) -> Layout:
    if not len(rows):
        rows = np.empty((0, 4), dtype=np.int64)
    return Layout.of_columns(
        recipe,
        rows=len(rows),
        batch_samples=rows[:, 0],
        microbatches=rows[:, 1],
        checkpoint_layers=rows[:, 2],
        **columns,
    )
