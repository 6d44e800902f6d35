"""Which clusters a request leaves open."""

from __future__ import annotations

import pytest

from smp_advisor import Cluster
from smp_advisor.errors import AdvisorError
from smp_advisor.search import COUNTS, Limits, places_of

P4D, P5 = "ml.p4d.24xlarge", "ml.p5.48xlarge"


def places(cluster, count=None, *, limits=None, cost=False, library="auto"):
    return places_of(cluster, count, limits=limits or Limits(), library=library, cost=cost)


@pytest.mark.parametrize(
    ("cluster", "count", "limits", "nodes", "goal"),
    [
        (P4D, 16, {}, (16,), "fastest"),
        (P4D, None, {}, (1,), "smallest"),
        (Cluster(P4D, 4), None, {}, (4,), "fastest"),
        (P4D, "smallest", {}, COUNTS, "smallest"),
        (P4D, None, {"max_days": 30}, COUNTS, "cheapest"),
        (P4D, None, {"max_usd": 3e5}, COUNTS, "fastest"),
        (P4D, None, {"max_days": 30, "max_usd": 3e5}, COUNTS, "fastest"),
        (P4D, 16, {"max_days": 30}, (16,), "cheapest"),
        ([P4D, P5], 8, {}, (8,), "fastest"),
        ([P4D, P5], None, {}, COUNTS, "cheapest"),
        ("any", None, {"max_days": 30}, COUNTS, "cheapest"),
        ("any", "smallest", {}, COUNTS, "smallest"),
    ],
)
def test_what_is_not_named_is_open(cluster, count, limits, nodes, goal):
    result = places(cluster, count, limits=Limits(**limits))
    assert sorted({c.nodes for c in result.clusters}) == list(nodes)
    assert result.goal == goal
    assert (result.fixed is not None) == (len(result.clusters) == 1)


def test_names_of_instances_are_completed():
    assert places(["p4d", "p5.48xlarge"], 2).clusters == (Cluster(P4D, 2), Cluster(P5, 2))


def test_any_is_one_type_of_those_with_the_same_gpus():
    machines = [c.instance for c in places("any", 1).clusters]
    assert len({(m.gpu, m.gpus) for m in machines}) == len(machines) > 10
    assert all(m.usd_per_hour is not None for m in machines)
    assert {c.instance.name for c in places("any", 1, library="smp-v2").clusters} < {m.name for m in machines}


def test_the_cost_objective_tries_fewer_nodes_and_other_types():
    result = places(P4D, 6, cost=True, library="smp-v2")
    assert result.requested == Cluster(P4D, 6)
    assert result.clusters[:5] == tuple(Cluster(P4D, nodes) for nodes in (1, 2, 3, 4, 6))
    assert {c.instance.name for c in result.clusters} > {P4D, P5}
    assert max(c.nodes for c in result.clusters) == 6


@pytest.mark.parametrize(
    ("cluster", "count", "problem"),
    [
        ([], None, "The list of instances is empty"),
        (["ml.p4f"], None, "ml.p4f"),
        (7, None, "not 7"),
        (P4D, 0, "at least 1 or 'smallest', not 0"),
        (P4D, "big", "'smallest', not 'big'"),
        (P4D, True, "not True"),
        (Cluster(P4D, 2), 3, "contradicts the cluster's 2 nodes"),
    ],
)
def test_what_is_no_cluster_is_refused_in_a_sentence(cluster, count, problem):
    with pytest.raises(AdvisorError, match=problem) as error:
        places(cluster, count)
    assert str(error.value).endswith(".")


def test_a_budget_needs_a_price():
    unpriced = Cluster.custom(
        gpu="A100",
        usable_gpu_memory_gib=39,
        peak_tflops=312,
        gpus_per_node=8,
        nodes=2,
        intra_node_gb_per_s=600,
        inter_node_gbps=400,
    )
    with pytest.raises(AdvisorError, match="max_usd needs a price, and none is known for"):
        places(unpriced, limits=Limits(max_usd=1e5))
    assert places(unpriced, limits=Limits(max_days=30)).fixed == unpriced
