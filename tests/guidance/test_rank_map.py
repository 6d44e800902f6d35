"""Rank maps as text, HTML and DataFrame."""

from __future__ import annotations

import re

import pytest

import smp_advisor as smpa
from smp_advisor.cluster import Cluster
from smp_advisor.errors import PlanError
from smp_advisor.guidance import RankTable
from smp_advisor.libraries import Plan
from smp_advisor.libraries.ranks import rank_map

P4D = "ml.p4d.24xlarge"
DEEP = Plan(tensor_parallel_degree=8, pipeline_parallel_degree=16, microbatches=16, batch_size=16)


@pytest.fixture(scope="module")
def advice() -> smpa.Advice:
    return smpa.advise("1.3B", P4D, instance_count=2, library="smp-v1", tensor_parallel_degree=2)


def test_the_frame_has_one_row_per_gpu(advice: smpa.Advice) -> None:
    frame = advice.rank_map()
    assert len(frame) == 16
    assert frame["node"].tolist() == 8 * [0] + 8 * [1]
    assert {"stage", "tensor_slice", "shard", "replica", "PP_GROUP", "TP_GROUP", "RDP_GROUP", "DP_GROUP"} <= set(frame)
    assert len(advice.rank_map(0)) == 16
    assert advice.rank_map(placement_strategy="TPD")["tensor_slice"].tolist() == 8 * [0] + 8 * [1]
    with pytest.raises(PlanError, match="rows 0 to"):
        advice.rank_map(10_000)


def test_large_clusters_are_described_by_their_repetition() -> None:
    table = RankTable(ranks=rank_map(Plan(tensor_parallel_degree=4, shard_optimizer_state=True), Cluster(P4D, 128)))
    assert table.period == 1
    text = str(table)
    assert "Stages and slices repeat in each node. Shard numbers grow by 2 per repetition" in text
    assert "TP_GROUP: 256 groups of 4 GPUs, inside a node; the first has ranks 0, 1, 2, 3." in text
    assert len(text.splitlines()) < 15
    deep = str(RankTable(ranks=rank_map(DEEP, Cluster(P4D, 128))))
    assert "repeat in each block of 16 nodes" in deep
    assert "Node 15" in deep
    assert len(deep.splitlines()) < 40


def test_stated_repetition_is_true() -> None:
    ranks = rank_map(DEEP, Cluster(P4D, 32))
    table = RankTable(ranks=ranks)
    size = table.period * 8
    assert (ranks.stage[size:] == ranks.stage[:-size]).all()
    assert (ranks.replica[size:] == ranks.replica[:-size] + 1).all()
    assert "Replica numbers grow by 1 per repetition" in str(table)


def test_the_table_in_html_has_headings_and_a_caption(advice: smpa.Advice) -> None:
    html = advice.ranks()._repr_html_()
    assert html.count('<th scope="row"') == len(advice.ranks().shown)
    assert html.count('<th scope="col"') == 9
    assert "<caption" in html
    assert "RDP_GROUP" in html
    assert not re.search(r"<script|onerror", html)


def test_an_assumed_order_is_marked() -> None:
    assert "does not document" in str(RankTable(ranks=rank_map(Plan(library="smp-v2"), Cluster(P4D, 1))))
