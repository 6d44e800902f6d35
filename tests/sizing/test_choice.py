"""The choice among clusters, its limits and its knee, with figures made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import Cluster, Job, Plan, estimate
from smp_advisor.errors import AdvisorError, JobError
from smp_advisor.search import ClusterSize, ClusterSizes, Limits
from smp_advisor.search.sizes import choose, knees, saves, saving, within
from smp_advisor.workload import Model

P4D = "ml.p4d.24xlarge"
MODEL = Model.from_parameters("1.3B", sequence_length=1024)
JOB = Job(sequence_length=1024, precision="bf16", attention="fused", tokens=1e9, overheads="none")
ESTIMATE = estimate(MODEL, Cluster(P4D, 1), JOB, Plan(library="fsdp", batch_size=4))


def size(nodes: int, speed: float, *, name: str = P4D, usd_per_hour: float = 30.0) -> ClusterSize:
    """A cluster that trains `speed` times as fast as the estimate, at a price per node."""
    days = ESTIMATE.days / speed
    now = replace(ESTIMATE, days=days, usd_per_hour=usd_per_hour * nodes, tokens_per_step=int(1e6 * speed))
    kind = "sharded, nodes" if nodes > 1 else "sharded, one node"
    return ClusterSize(cluster=Cluster(name, nodes), library="fsdp", job=JOB, estimate=now, kind=kind, stack="hf-sdpa")


def misfit(nodes: int) -> ClusterSize:
    return ClusterSize(cluster=Cluster(P4D, nodes), library="fsdp", job=JOB, estimate=None, nearest_gib=50.0)


SIZES = [misfit(1), size(2, 2.0), size(4, 3.9), size(8, 7.0), size(16, 9.0), size(32, 10.0)]
DAYS = ESTIMATE.days


def test_each_goal_has_its_cluster():
    assert choose(SIZES, "smallest", Limits()).cluster.nodes == 2
    assert choose(SIZES, "fastest", Limits()).cluster.nodes == 32
    assert choose(SIZES, "cheapest", Limits()).cluster.nodes == 2


def test_the_knee_is_the_last_cluster_that_is_worth_its_nodes():
    assert [knee.cluster.nodes for knee in knees(SIZES)] == [8]
    assert [knee.cluster.nodes for knee in knees(SIZES[:3])] == [4]
    assert knees([misfit(1)]) == []


def test_a_deadline_is_met_with_the_whole_interval_where_possible():
    high = ESTIMATE.step_factors[1]
    sure = Limits(max_days=DAYS / 3.9 * high * 1.01)
    assert choose(SIZES, "cheapest", sure).cluster.nodes == 4
    # Without a cluster that surely meets it, one whose estimate does.
    tight = Limits(max_days=DAYS / 9.5)
    assert choose(SIZES, "cheapest", tight).cluster.nodes == 32
    assert not within(SIZES[-1], tight, surely=True)
    assert choose(SIZES, "cheapest", Limits(max_days=DAYS / 11)) is None


def test_a_budget_leaves_the_fastest_cluster_within_it():
    limit = Limits(max_usd=SIZES[3].usd * 1.001)
    assert choose(SIZES, "fastest", limit).cluster.nodes == 8


def test_a_saving_within_its_own_interval_moves_nobody():
    own, cheaper = size(16, 9.0), size(4, 2.4)
    point, low, high = saving(cheaper, own)
    assert point == pytest.approx(1 - (4 / 2.4) / (16 / 9.0))
    assert low < 0 < point < high
    sizes = [cheaper, own]
    assert choose(sizes, "cheapest", Limits(), own.cluster) is own
    assert choose(sizes, "cheapest", Limits()) is cheaper
    much = size(4, 7.0)
    assert saves(much, own)
    assert choose([much, own], "cheapest", Limits(), own.cluster) is much


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_saving_and_its_reverse_have_opposite_signs(one, another):
    left, right = size(2, one), size(8, another)
    forth, back = saving(left, right), saving(right, left)
    assert forth[1] <= forth[0] <= forth[2]
    assert (1 - forth[0]) * (1 - back[0]) == pytest.approx(1)
    assert not (saves(left, right) and saves(right, left))


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 50)), min_size=1, max_size=12), st.floats(0.01, 20))
def test_the_answer_is_within_the_limits_and_nothing_surely_cheaper_is_left_out(pairs, share):
    sizes = [size(nodes, speed) for nodes, speed in pairs]
    limits = Limits(max_days=DAYS * share)
    chosen = choose(sizes, "cheapest", limits)
    allowed = [other for other in sizes if within(other, limits)]
    assert (chosen is None) == (not allowed)
    if chosen is not None:
        assert within(chosen, limits)
        sure = [other for other in allowed if within(other, limits, surely=True)] or allowed
        assert chosen.usd <= 1.03 * min(other.usd for other in sure) * (1 + 1e-9)


def test_limits_need_tokens_and_are_read_as_people_write_them():
    assert Limits.of(JOB, max_days="30", max_usd="250k") == Limits(max_days=30.0, max_usd=250_000.0)
    assert not Limits.of(replace(JOB, tokens=None))
    with pytest.raises(JobError, match="max_usd needs the tokens"):
        Limits.of(replace(JOB, tokens=None), max_usd=10)
    with pytest.raises(AdvisorError, match="max_days must be a positive number, for example 30, not 'soon'"):
        Limits.of(JOB, max_days="soon")


def test_the_curve_is_a_table_in_each_form():
    curve = ClusterSizes(model=MODEL, sizes=tuple(SIZES), goal="cheapest", requested=Cluster(P4D, 32))
    frame = curve.to_frame()
    assert list(frame["nodes"]) == [1, 2, 4, 8, 16, 32]
    assert list(frame["fits"]) == [False, *[True] * 5]
    assert list(frame["nodes"][frame["knee"]]) == [8]
    assert (frame["days_low"][1:] < frame["days"][1:]).all()
    assert list(frame["nodes"][frame["chosen"]]) == [curve.chosen.cluster.nodes]
    text, html = str(curve), curve._repr_html_()
    assert "needs 50.0 GiB" in text
    assert html.count("<tr>") == 1 + len(SIZES)
    assert [one.cluster.nodes for one in curve.pareto] == [32, 16, 8, 4, 2]
    stopped = replace(curve, sizes=curve.sizes[:3], complete=False)
    assert stopped.lines()[-1] == "3 clusters compared, then it was stopped."


def test_names_are_escaped():
    named = replace(MODEL, name="<b>x</b>")
    curve = ClusterSizes(model=named, sizes=(misfit(1),))
    assert "<b>" not in curve._repr_html_()
    assert "&lt;b&gt;" in curve._repr_html_()
