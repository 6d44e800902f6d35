"""PyTorch's FullyShardedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.columns import SHARDING_STRATEGIES
from smp_advisor.libraries.fsdp.layout import layout
from smp_advisor.libraries.fsdp.plan import FsdpPlan
from smp_advisor.libraries.library import FULLY_SHARD_SINCE, SHARDED_SETTINGS, Library
from smp_advisor.libraries.replica_space import replica_space
from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.space import Space
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["LIBRARY"]


def _space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    # Within one node the hybrid strategies equal the first two.
    strategies = SHARDING_STRATEGIES if cluster.nodes > 1 else SHARDING_STRATEGIES[:2]
    return replica_space("fsdp", model, cluster, job, pins, strategies)


LIBRARY = Library(
    name="fsdp",
    package=__name__,
    plan=FsdpPlan,
    layout=layout,
    space=_space,
    flat_parameters=lambda plan: release(plan.version)[:2] < FULLY_SHARD_SINCE,
    adapters=True,
    adapter_bases=frozenset({16}),
    training_settings=SHARDED_SETTINGS,
    controls=("sharding_strategy", "activation_checkpointing", "batch_size", "gradient_accumulation_steps"),
    alternatives=("sharding_strategy", "activation_checkpointing", "gradient_accumulation_steps"),
)
