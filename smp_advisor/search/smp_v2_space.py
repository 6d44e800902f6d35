"""Every plan of SMP v2 on a cluster, as columns."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.layout import Layout, checkpoint_strategy
from smp_advisor.costs.recipe import fully_sharded, over_frozen
from smp_advisor.costs.translation_sharded import LOADING_HORIZON, PREFETCHED_UNITS
from smp_advisor.library.families import supports
from smp_advisor.library.schema import schema
from smp_advisor.library.smp_v2_check import SMDDP_INSTANCES
from smp_advisor.library.version import default_version
from smp_advisor.search import axes
from smp_advisor.search.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["enumerate_smp_v2", "technique_degrees"]

_COLUMNS = frozenset(
    {
        "activation_checkpointing",
        "batch_size",
        "context_parallel_degree",
        "expert_parallel_degree",
        "gradient_accumulation_steps",
        "hybrid_shard_degree",
        "offload_activations",
        "tensor_parallel_degree",
    }
)
"""Plan fields that a row decides; any other pinned field is passed on to the plan as it is."""

_DELAYED_FROM = 60e9
"""Parameters from which the best practices of SMP v2 ask for delayed parameter initialization."""


def _settings(at: Mapping[str, Any], *, shared: Mapping[str, Any], smddp: bool) -> dict[str, Any]:
    """Fields of the plan of a row."""
    # Tensor parallelism alone works with NCCL only (release notes of 2.0.0).
    backend = "smddp" if smddp and at["shard_degree"] > 1 else "nccl"
    return {
        **shared,
        "hybrid_shard_degree": at["shard_degree"],
        "tensor_parallel_degree": at["tensor_parallel_degree"],
        "context_parallel_degree": at["context_parallel_degree"],
        "expert_parallel_degree": at["expert_parallel_degree"],
        "batch_size": at["batch_samples"] // at["microbatches"],
        "gradient_accumulation_steps": at["microbatches"],
        "activation_checkpointing": checkpoint_strategy(at["checkpoint_layers"]),
        "offload_activations": at["offload_activations"],
        "distributed_backend": backend,
    }


def enumerate_smp_v2(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """All plans of SMP v2: every combination of degrees that divides cluster and model, and what each can do.

    Axes: tensor, context and expert parallel degrees (for the families and versions that have them), hybrid shard
    degree, checkpointing, offloading, batch and gradient accumulation.
    """
    choices = axes.memory_choices([False, "each"], pins)
    parts = []
    for tp, cp, ep, shards in _degrees(model, cluster, job, pins):
        pairs = axes.accumulated_batches(job, model, cluster.gpus // (tp * cp), pins)
        rows = axes.crossed(pairs, choices)
        if len(rows):
            parts.append(_layout(rows, job, (tp, cp, ep, shards), pins))
    if not parts:
        parts.append(_layout(np.empty((0, 4), dtype=np.int64), job, (1, 1, 1, 1), pins))
    shared = {
        "precision": job.precision,
        "fp8": job.fp8,
        "delayed_parameter_initialization": model.parameter_count >= _DELAYED_FROM,
    }
    settings = partial(_settings, shared=shared, smddp=cluster.instance.name in SMDDP_INSTANCES and cluster.nodes > 1)
    extra = {name: value for name, value in pins.items() if name not in _COLUMNS}
    return Space(library="smp-v2", layout=Layout.concatenate(parts), settings=settings, extra=extra)


def _degrees(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """(tensor, context, expert, shard) degrees that the cluster, the model and the version allow together."""
    version = pins.get("version", default_version("smp-v2"))

    def tried(technique: str) -> list[int]:
        key = f"{technique}_degree"
        return [pins[key]] if key in pins else technique_degrees(model, cluster, job, technique, version=version)

    for tp, cp, ep in product(tried("tensor_parallel"), tried("context_parallel"), tried("expert_parallel")):
        if cluster.gpus % (tp * cp) or cluster.gpus % (tp * ep):
            continue
        left = cluster.gpus // (tp * ep)
        degrees = [pins["hybrid_shard_degree"] or left] if "hybrid_shard_degree" in pins else axes.divisors(left)
        for shards in degrees:
            if cp <= shards and left % shards == 0:
                yield tp, cp, ep, shards


def technique_degrees(model: Model, cluster: Cluster, job: Job, technique: str, *, version: str) -> list[int]:
    """Degrees of a technique that divide the cluster and what it divides of the model; 1 where there is none.

    Parameters
    ----------
    technique
        ``tensor_parallel`` divides attention heads, ``context_parallel`` the sequence, ``expert_parallel`` the experts.
    version
        Of the library; older ones lack some techniques.
    """
    parameter = schema("smp-v2").parameter(f"{technique}_degree")
    known = parameter is not None and parameter.exists_in(version)
    if not (known and supports(model.family, technique, "smp-v2")):
        return [1]
    if technique == "tensor_parallel":
        sizes = [size for group in model.groups for a in group.block.attentions for size in (a.heads, a.kv_heads)]
    elif technique == "context_parallel":
        sizes = [model.sequence_length(job.sequence_length)]
    else:
        sizes = [model.shape.experts]
    return [one for one in axes.divisors(cluster.gpus) if all(size % one == 0 for size in sizes)]


def _layout(rows: axes.Ints, job: Job, degrees: tuple[int, int, int, int], pins: Mapping[str, Any]) -> Layout:
    tp, cp, ep, shards = degrees
    keeps = pins.get("sharding_strategy") == "_hybrid_shard_zero2"
    return Layout.of_columns(
        over_frozen(fully_sharded(job), job),
        rows=len(rows),
        tensor_parallel_degree=tp,
        sequence_parallel=tp > 1,
        context_parallel_degree=cp,
        expert_parallel_degree=ep,
        experts_beside_shards=True,
        shard_level=3,
        shard_degree=shards,
        prefetched_units=0 if keeps else PREFETCHED_UNITS,
        max_live_parameters=2**62,
        batch_samples=rows[:, 0],
        microbatches=rows[:, 1],
        checkpoint_layers=rows[:, 2],
        offload_activations=rows[:, 3],
        offload_running=True,
        activation_loading_horizon=pins.get("activation_loading_horizon") or LOADING_HORIZON,
    )
