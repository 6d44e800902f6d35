"""All plans of SMP v2 on a cluster."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries import axes
from smp_advisor.libraries.axes import technique_degrees
from smp_advisor.libraries.columns import encoded
from smp_advisor.libraries.smp_v2.mismatches import SMDDP_INSTANCES
from smp_advisor.libraries.smp_v2.plan import BROKEN_OFFLOADING
from smp_advisor.libraries.space import Space
from smp_advisor.libraries.version import default_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["space"]

_FIELDS = (
    "hybrid_shard_degree",
    "tensor_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "batch_size",
    "gradient_accumulation_steps",
    "activation_checkpointing",
    "offload_activations",
    "distributed_backend",
)
"""Fields that the search varies. Other pinned fields are passed to the plan."""

_DELAYED_FROM = 60e9
"""Parameters from which the best practices of SMP v2 require delayed parameter initialization."""


def space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """All plans of SMP v2: every combination of degrees that divide cluster and model, with choices for memory.

    Axes: tensor, context and expert parallel degrees (for the families and versions that have them), hybrid shard
    degree, checkpointing, offloading, batch and gradient accumulation.
    """
    shared = {
        "precision": job.precision,
        "fp8": job.fp8,
        "delayed_parameter_initialization": model.parameter_count >= _DELAYED_FROM,
        "sm_activation_offloading": pins.get("version", default_version("smp-v2")) != BROKEN_OFFLOADING,
        **{name: value for name, value in pins.items() if name not in _FIELDS},
    }
    return Space.of_blocks("smp-v2", cluster, job, _FIELDS, _blocks(model, cluster, job, pins), shared)


def _blocks(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Blocks of plans with the same degrees."""
    smddp = cluster.instance.name in SMDDP_INSTANCES and cluster.nodes > 1
    choices = axes.memory_choices([False, "each"], pins)

    @cache
    def batches(replicas: int) -> dict[str, NDArray[Any]]:
        """Batches and choices for memory, which many degrees share."""
        rows = axes.crossed(axes.accumulated_batches(job, model, replicas, pins), choices)
        return {
            "batch_size": rows[:, 0] // rows[:, 1],
            "gradient_accumulation_steps": rows[:, 1],
            "activation_checkpointing": rows[:, 2],
            "offload_activations": rows[:, 3].astype(bool),
        }

    for tp, cp, ep, shards in _degrees(model, cluster, job, pins):
        columns = batches(cluster.gpus // (tp * cp))
        # Tensor parallelism alone works with NCCL only (release notes of 2.0.0).
        backend = pins.get("distributed_backend", "smddp" if smddp and shards > 1 else "nccl")
        yield (
            len(columns["batch_size"]),
            {
                "hybrid_shard_degree": shards,
                "tensor_parallel_degree": tp,
                "context_parallel_degree": cp,
                "expert_parallel_degree": ep,
                "distributed_backend": encoded("distributed_backend", backend),
                **columns,
            },
        )


def _degrees(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """(tensor, context, expert, shard) degrees that the cluster, the model and the version allow together."""
    version = pins.get("version", default_version("smp-v2"))

    def candidates(field: str) -> list[int]:
        return [pins[field]] if field in pins else technique_degrees("smp-v2", field, model, cluster, job, version)

    for tp, cp, ep in product(*map(candidates, _FIELDS[1:4])):
        if cluster.gpus % (tp * cp) or cluster.gpus % (tp * ep):
            continue
        left = cluster.gpus // (tp * ep)
        degrees = [pins["hybrid_shard_degree"] or left] if "hybrid_shard_degree" in pins else axes.divisors(left)
        for shards in degrees:
            if cp <= shards and left % shards == 0:
                yield tp, cp, ep, shards
