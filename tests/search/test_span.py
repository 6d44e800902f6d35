"""The communication span agrees with the groups of GPUs in the rank map."""

from __future__ import annotations

import math

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.costs.world import World
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.ranks import rank_map
from smp_advisor.search.rank import communication_span
from smp_advisor.workload import Job, Model

CLUSTER = Cluster("ml.p4d.24xlarge", 4)
MODEL = Model.from_parameters(10e9, sequence_length=512)


def span(plan: Plan, cluster: Cluster = CLUSTER) -> int:
    job = Job(sequence_length=512, precision="bf16" if plan.library == "smp-v2" else "fp16")
    layout = layout_of([plan], job, cluster)
    return int(communication_span(World.of(MODEL, cluster, job, layout), layout)[0])


@pytest.mark.parametrize("placement", ["cluster", "spread"])
@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 1), (8, 1), (1, 4), (2, 2), (4, 4), (8, 4)])
def test_tensor_and_pipeline_groups_extend_over_the_nodes_of_the_span(tensor: int, stages: int, placement: str) -> None:
    plan = Plan(
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=stages,
        placement_strategy=placement,
        prescaled_batch=tensor > 1,
        fp16=True,
        microbatches=stages,
        batch_size=stages,
    )
    table = rank_map(plan, CLUSTER)
    nodes = max(
        len(set(table.node[table.members(name, number)].tolist()))
        for name in ("TP_GROUP", "PP_GROUP")
        for number in set(table.groups[name].tolist())
    )
    if placement == "cluster":
        assert nodes == math.ceil(span(plan) / 8)
    else:
        assert nodes <= math.ceil(span(plan) / 8)


def test_sharding_counts_with_the_tensor_groups_between_its_members() -> None:
    assert span(Plan(sharded_data_parallel_degree=8, fp16=True)) == 8
    assert span(Plan(tensor_parallel_degree=2, sharded_data_parallel_degree=8, prescaled_batch=True, fp16=True)) == 16
    assert span(Plan(library="smp-v2", hybrid_shard_degree=0)) == 32
    # The state that all replicas share travels once per step, like the gradients.
    assert span(Plan(shard_optimizer_state=True, fp16=True)) == 1


def test_groups_that_straddle_nodes_count_as_the_nodes_that_they_share() -> None:
    cluster = Cluster("ml.p4d.24xlarge", 5)
    assert span(Plan(library="smp-v2", hybrid_shard_degree=10), cluster) == 40
    assert span(Plan(library="smp-v2", hybrid_shard_degree=20), cluster) == 40
    assert span(Plan(library="smp-v2", hybrid_shard_degree=4), cluster) == 4
