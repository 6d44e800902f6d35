"""Ranks of a plan on a cluster: stage, slices, shard and replica of every GPU, and its groups of the SMP library.

Groups, from the ranking mechanism of the SageMaker developer guide: a PP_GROUP holds all stages of a model, a TP_GROUP
all slices of a stage, an RDP_GROUP the GPUs with equal stage and slice, and a DP_GROUP the GPUs with equal stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.errors import PlanError
from smp_advisor.libraries.groups import data_parallel_degree, reduced_data_parallel_degree, shard_degree
from smp_advisor.libraries.library import plan_fields

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

    Ints = NDArray[np.int64]

_NAMED = {"cluster": "DPT", "spread": "TPD"}
PLACEMENTS = (*_NAMED, "DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
"""Placement strategies of SMP v1. In the orders of letters (D: reduced data, P: pipeline, T: tensor parallelism), the
last letter varies fastest over neighboring ranks. Source: common API of SMP v1, ``placement_strategy``."""

GROUPS = ("PP_GROUP", "TP_GROUP", "RDP_GROUP", "DP_GROUP")
COLUMNS = ("rank", "node", "gpu", "stage", "tensor_slice", "context_slice", "experts", "shard", "replica")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMap:
    """Contents of every GPU, as columns of shape (GPUs,), in the order of ranks."""

    placement: str
    """Order of the letters D, P and T."""
    documented: bool
    """Whether the library documents the order (SMP v1). For others, the cost model's assumption."""
    gpus_per_node: int
    degrees: dict[str, int]
    """Number of different values of each column: stages, slices, shards, replicas."""
    rank: Ints
    node: Ints
    gpu: Ints
    """Number of the GPU in its node."""
    stage: Ints
    """``pp_rank``: pipeline stage."""
    tensor_slice: Ints
    """``tp_rank``: slice of every divided layer."""
    context_slice: Ints
    """Part of every sequence."""
    experts: Ints
    """Part of the experts of every layer."""
    shard: Ints
    """Part of the sharded state: of parameters, gradients and optimizer state, or of the optimizer state alone."""
    replica: Ints
    """Groups with equal numbers process the same samples together."""
    groups: dict[str, Ints]
    """Number of each rank's group, by the names in `GROUPS`. Groups are numbered by their first rank."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.node[-1]) + 1

    def members(self, group: str, number: int) -> Ints:
        """Ranks of a group, in increasing order: ``members("TP_GROUP", 0)``."""
        members: Ints = self.rank[self.groups[group] == number]
        return members


def rank_map(plan: Plan, cluster: Cluster, placement_strategy: str | None = None) -> RankMap:
    """Stage, slices, shard and replica of every GPU."""
    strategy = plan.placement_strategy if placement_strategy is None else placement_strategy
    if strategy not in PLACEMENTS:
        raise PlanError(f"placement_strategy must be one of {', '.join(PLACEMENTS)}, not {strategy!r}.")
    order = _NAMED.get(strategy, strategy)
    tp, cp = plan.tensor_parallel_degree, plan.context_parallel_degree
    sizes = {"D": data_parallel_degree(plan, cluster) // tp, "P": plan.pipeline_parallel_degree, "T": tp}
    rank = np.arange(cluster.gpus, dtype=np.int64)
    place: dict[str, Ints] = {}
    stride = 1
    for letter in reversed(order):
        place[letter] = rank // stride % sizes[letter]
        stride *= sizes[letter]
    data, stage, slices = place["D"], place["P"], place["T"]
    experts = plan.expert_parallel_degree
    shards = sizes["D"] if plan.shard_optimizer_state else shard_degree(plan, cluster)
    return RankMap(
        placement=order,
        documented="placement_strategy" in plan_fields(plan.library),
        gpus_per_node=cluster.gpus_per_node,
        degrees={
            "stage": sizes["P"],
            "tensor_slice": tp,
            "context_slice": cp,
            "experts": experts,
            "shard": shards,
            "replica": reduced_data_parallel_degree(plan, cluster),
        },
        rank=rank,
        node=rank // cluster.gpus_per_node,
        gpu=rank % cluster.gpus_per_node,
        stage=stage,
        tensor_slice=slices,
        context_slice=data % cp,
        experts=data % experts,
        shard=data // experts % shards if shards > 1 else np.zeros_like(rank),
        replica=data // cp,
        groups={
            "PP_GROUP": _numbered(data * tp + slices),
            "TP_GROUP": _numbered(data * sizes["P"] + stage),
            "RDP_GROUP": _numbered(stage * tp + slices),
            "DP_GROUP": _numbered(stage),
        },
    )


def _numbered(keys: Ints) -> Ints:
    """Numbers of equal keys, in the order of their first appearance."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), dtype=np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    return numbers[inverse]
