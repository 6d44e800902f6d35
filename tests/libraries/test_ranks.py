"""Ranks of plans: the examples of the documentation, and laws for every plan and placement."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smp_advisor.advice.rank_map import GROUPS, PLACEMENTS, RankTable, rank_map
from smp_advisor.cluster import Cluster, instances
from smp_advisor.costs.world import World
from smp_advisor.errors import InstanceError, PlanError
from smp_advisor.libraries import Plan, nearest_supported, require_supported_instance, supported_instances
from smp_advisor.libraries.groups import data_parallel_degree, global_batch_size, reduced_data_parallel_degree
from smp_advisor.libraries.layout import layout_of
from smp_advisor.workload import Job, Model
from tests.libraries.test_check import HARDWARE

P4D = "ml.p4d.24xlarge"
TWO_BY_TWO = Plan(tensor_parallel_degree=2, pipeline_parallel_degree=2, microbatches=2, batch_size=2)


def members_of(ranks: RankTable, name: str) -> list[list[int]]:
    return [ranks.members(name, n).tolist() for n in range(int(ranks.columns[name].max()) + 1)]


def test_the_documented_groups_of_eight_gpus_and_degree_two() -> None:
    ranks = rank_map(TWO_BY_TWO, Cluster(P4D, 1))
    assert members_of(ranks, "TP_GROUP") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert members_of(ranks, "PP_GROUP") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert members_of(ranks, "RDP_GROUP") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert members_of(ranks, "DP_GROUP") == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("placement", "pairs"),
    [("spread", [[0, 4], [1, 5], [2, 6], [3, 7]]), ("cluster", [[0, 1], [2, 3], [4, 5], [6, 7]])],
)
def test_the_documented_pipelines_without_tensor_parallelism(placement: str, pairs: list[list[int]]) -> None:
    plan = Plan(pipeline_parallel_degree=2, microbatches=2, batch_size=2, placement_strategy=placement)
    assert members_of(rank_map(plan, Cluster(P4D, 1)), "PP_GROUP") == pairs


def test_placements() -> None:
    ranks = rank_map(TWO_BY_TWO, Cluster(P4D, 1), "PTD")
    assert ranks.columns["replica"].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert ranks.columns["tensor_slice"].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert ranks.columns["stage"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]

    with pytest.raises(PlanError, match="placement_strategy must be one of"):
        rank_map(TWO_BY_TWO, Cluster(P4D, 1), "near")
    with pytest.raises(PlanError, match="multiple"):
        rank_map(Plan(pipeline_parallel_degree=3, microbatches=3, batch_size=3), Cluster(P4D, 1))

    ranks = rank_map(Plan(library="fsdp", sharding_strategy="hybrid_shard"), Cluster(P4D, 2))
    assert ranks.columns["shard"].tolist() == 2 * list(range(8))
    assert rank_map(Plan(library="fsdp"), Cluster(P4D, 2)).columns["shard"].tolist() == list(range(16))
    assert not rank_map(Plan(library="ddp"), Cluster(P4D, 2)).columns["shard"].any()


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, Cluster]:
    cluster = Cluster(P4D, draw(st.sampled_from([1, 2, 3, 16])))
    library = draw(st.sampled_from(["smp-v1", "smp-v1-tensorflow", "smp-v2", "fsdp", "ddp"]))
    degree = st.sampled_from([1, 2, 4, 8])
    try:
        match library:
            case "smp-v1":
                shards = draw(st.sampled_from([1, 1, 2, 8]))
                plan = Plan(
                    tensor_parallel_degree=draw(degree),
                    pipeline_parallel_degree=1 if shards > 1 else draw(degree),
                    sharded_data_parallel_degree=shards,
                    shard_optimizer_state=shards == 1 and draw(st.booleans()),
                    placement_strategy=draw(st.sampled_from(["cluster", "spread"])),
                    microbatches=8,
                    batch_size=8,
                    fp16=True,
                )
            case "smp-v1-tensorflow":
                plan = Plan(library=library, partitions=draw(degree), microbatches=8, batch_size=8)
            case "smp-v2":
                plan = Plan(
                    library=library,
                    tensor_parallel_degree=draw(degree),
                    context_parallel_degree=draw(st.sampled_from([1, 2])),
                    hybrid_shard_degree=draw(degree),
                )
            case _:
                plan = Plan(library=library)
        reduced_data_parallel_degree(plan, cluster)
    except PlanError:
        assume(False)
    assume(
        cluster.gpus % (plan.tensor_parallel_degree * plan.pipeline_parallel_degree * plan.shard_degree(cluster)) == 0
    )
    return plan, cluster


@given(plans(), st.sampled_from([None, *PLACEMENTS]))
def test_every_group_holds_what_it_is_defined_by(chosen: tuple[Plan, Cluster], placement: str | None) -> None:
    plan, cluster = chosen
    ranks = rank_map(plan, cluster, placement)
    for member in members_of(ranks, "PP_GROUP"):
        assert ranks.columns["stage"][member].tolist() == list(range(plan.pipeline_parallel_degree))
    for member in members_of(ranks, "TP_GROUP"):
        assert ranks.columns["tensor_slice"][member].tolist() == list(range(plan.tensor_parallel_degree))
    for member in members_of(ranks, "RDP_GROUP"):
        places = [ranks.columns[name][member].tolist() for name in ("stage", "tensor_slice")]
        assert len(set(zip(*places, strict=True))) == 1
        # Each shard exists as often as there are copies of the sharded state.
        counts = np.bincount(ranks.columns["shard"][member], minlength=ranks.degrees["shard"])
        assert len(set(counts.tolist())) == 1
    for member in members_of(ranks, "DP_GROUP"):
        assert len(member) == data_parallel_degree(plan, cluster)
    for name in GROUPS:
        assert sorted(rank for member in members_of(ranks, name) for rank in member) == list(range(cluster.gpus))
    batches = int(ranks.columns["replica"].max()) + 1
    assert global_batch_size(plan, cluster) == batches * plan.batches_per_group * plan.batch_size


@given(plans())
def test_the_cost_model_has_the_same_distances(chosen: tuple[Plan, Cluster]) -> None:
    plan, cluster = chosen
    job = Job(sequence_length=512, precision=plan.precision)
    world = World.of(
        Model.from_parameters("125M", sequence_length=512, family="gpt2"), cluster, job, layout_of([plan], job, cluster)
    )
    ranks = rank_map(plan, cluster)
    for name, stride in (
        ("TP_GROUP", world.tensor_stride),
        ("PP_GROUP", world.pipeline_stride),
        ("RDP_GROUP", world.data_stride),
    ):
        members = ranks.members(name, 0)
        if len(members) > 1:
            assert members[1] - members[0] == np.asarray(stride).flat[0]


LISTED = ["ml.g4dn.12xlarge", "ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge"]


def test_any_other_is_refused_with_one_that_can_be_ordered(subtests):
    for machine in [one for one in instances() if one.name not in LISTED]:
        with subtests.test(machine.name):
            with pytest.raises(InstanceError) as refusal:
                require_supported_instance("smp-v1", machine)
            assert machine.name in str(refusal.value)
            suggested = nearest_supported("smp-v1", machine)
            assert f"{suggested.name} ({suggested.gpus} x {suggested.gpu_label}); on" in str(refusal.value)
            assert f"on {machine.name}, use library=" in str(refusal.value)
            assert str(refusal.value).endswith("'fsdp'.")
            assert "V100" not in suggested.gpu


def test_the_listed_instances_and_custom_hardware_are_accepted():
    assert sorted(machine.name for machine in supported_instances("smp-v1")) == LISTED
    for name in LISTED:
        assert require_supported_instance("smp-v1", name) == ""

    note = require_supported_instance("smp-v1", Cluster.custom(**HARDWARE).instance)
    assert "custom hardware" in note
