"""Charts of an advice: their figures are those of the estimate, and their names are checked."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

import smp_advisor as smpa
from smp_advisor.charts import CHARTS
from smp_advisor.charts.plans import plotted_plans, sizes_chart
from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError


@pytest.fixture(scope="module")
def advice():
    return smpa.advise("10B", "ml.p4d.24xlarge", instance_count=4, tokens="20B", library="smp-v1")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CHARTS, "batch_size", "pipeline_parallel_degree"])
def test_every_chart_is_plain_data_with_a_drawing_and_a_table(advice, name):
    chart = advice.chart(name)
    assert json.loads(json.dumps(chart.plain(640)))["svg"] == chart.svg(640)
    assert all(len(row) == len(chart.columns) for row in chart.rows)
    root = ET.fromstring(chart.svg(640))
    assert root.attrib["aria-label"]
    assert [title.text for title in root.iter("title")]


def test_a_chart_without_a_name_of_its_own_is_refused(advice):
    with pytest.raises(AdvisorError, match="no chart 'pie'"):
        advice.chart("pie")


def test_memory_of_another_plan_has_the_recommendation_as_outline(advice):
    assert advice.chart("memory").data["rows"][0]["ghost"] is None
    ghosts = [row["ghost"] for row in advice.chart("memory", 3).data["rows"]]
    assert advice.estimate.memory.peak.total_gib in ghosts


def test_points_are_plans_with_their_own_estimates(advice):
    data, plans = advice.chart("alternatives").data, plotted_plans(advice)
    assert len(plans) == len(data["free"]) == len(data["rates"]) == len(data["titles"])
    assert len(set(data["titles"])) == len(plans)
    for index in (0, len(plans) // 2, len(plans) - 1):
        value = estimate(advice.model, advice.cluster, advice.job, plans[index])
        assert data["free"][index] == pytest.approx(value.headroom_gib, abs=0.01)
        assert data["rates"][index] == pytest.approx(value.tokens_per_second, rel=1e-4)
    assert plans[data["best"]] == advice.plan


def test_points_of_clusters_have_their_intervals_and_mark_the_present_one(advice):
    (line,) = sizes_chart(advice.compare_clusters(counts=(2, 8)), advice).data["lines"]
    (now,) = [point for point in line["points"] if point["mark"] == "now"]
    assert now["nodes"] == 4
    assert now["time"] == pytest.approx(advice.estimate.days, rel=1e-4)
    for point in line["points"]:
        assert point["time_range"][0] < point["time"] < point["time_range"][1]
        assert point["cost_range"][0] < point["cost"] < point["cost_range"][1]


def test_a_sweep_has_the_estimate_of_each_position(advice):
    data = advice.chart("batch_size").data
    index = data["current"]
    assert index == data["recommended"]
    assert data["memory"][index] == pytest.approx(advice.estimate.needed_gib, abs=0.001)
    assert data["rates"][index] == pytest.approx(advice.estimate.tokens_per_second, rel=1e-5)
    over = [memory for memory, state in zip(data["memory"], data["fits"], strict=True) if state == "over"]
    assert all(memory > data["limit"] for memory in over)


def test_the_ladder_starts_without_techniques_and_ends_with_the_plan(advice):
    rows = advice.chart("ladder").data["rows"]
    used = [row for row in rows if row["used"]]
    assert used[0]["memory_before"] is None
    assert used[-1]["memory"] == pytest.approx(advice.estimate.needed_gib, rel=1e-4)
    assert [row["memory_before"] for row in used[1:]] == [row["memory"] for row in used[:-1]]


def test_the_rank_map_of_many_nodes_shows_the_first():
    data = smpa.advise("10B", "ml.p4d.24xlarge", instance_count=64).chart("ranks").data
    assert data["nodes"] == list(range(16))
    assert all(len(column["values"]) == 128 for column in data["columns"])
    assert "16 nodes of 64" in data["description"]
