"""Charts of an advice: their figures are those of the estimate, and their names are checked."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

import smp_advisor as smpa
from smp_advisor.charts.plans import plotted_plans, sizes_chart
from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError


@pytest.fixture(scope="module")
def advice():
    return smpa.advise("10B", "ml.p4d.24xlarge", instance_count=4, tokens="20B", library="smp-v1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alternatives", "clusters"])  # modules requires a profile
def test_every_drawn_chart_is_plain_data_with_a_drawing_and_a_table(advice, name):
    chart = advice.chart(name)
    assert json.loads(json.dumps(chart.plain(640)))["svg"] == chart.svg(640)
    assert all(len(row) == len(chart.columns) for row in chart.rows)
    root = ET.fromstring(chart.svg(640))
    assert root.attrib["aria-label"]
    assert [title.text for title in root.iter("title")]


def test_a_chart_without_a_name_of_its_own_is_refused(advice):
    with pytest.raises(AdvisorError, match="no chart 'pie'"):
        advice.chart("pie")
    with pytest.raises(AdvisorError, match="requires advice from a profile"):
        advice.chart("modules")


def test_memory_and_time_are_tables_with_bars_in_proportion(advice):
    memory, time = advice.chart("memory", 3), advice.chart("time")
    *parts, peak = memory.rows
    assert len(peak[-1]) == 24  # the usable memory
    assert peak[-1].count("█") == round(24 * float(peak[1]) / advice.cluster.instance.usable_gpu_memory_gib)
    assert sum(float(row[1]) for row in parts) == pytest.approx(float(peak[1]), abs=0.06)
    assert max(time.rows, key=lambda row: float(row[2].split()[0])) == max(time.rows, key=lambda row: len(row[-1]))
    assert f"The recommended plan needs {advice.estimate.needed_gib:.1f}." in memory._repr_html_()
    assert f"The recommended plan needs {advice.estimate.needed_gib:.1f}." not in str(advice.chart("memory"))
    with pytest.raises(AdvisorError, match="'Memory per GPU' is a table: print it"):
        memory.svg()


def test_points_are_plans_with_their_own_estimates(advice):
    chart, plans = advice.chart("alternatives"), plotted_plans(advice)
    points = {circle.get("data-row"): circle for circle in ET.fromstring(chart.svg()).iter("circle")}
    assert len(plans) == len(chart.rows) == len(points) - 1  # the plan on the screen is a ring
    for index in (0, len(plans) // 2, len(plans) - 1):
        value = estimate(advice.model, advice.cluster, advice.job, plans[index])
        assert f"{value.headroom_gib:.1f} GiB free" in points[str(index)].find("title").text
        assert chart.rows[index][3] == f"{value.headroom_gib:.1f}"
        assert float(chart.rows[index][1].replace(",", "")) == pytest.approx(value.tokens_per_second, rel=0.01)
    assert [plans[int(row)] for row, point in points.items() if "smp-best" in point.get("class")] == [advice.plan]


def test_the_present_cluster_has_its_interval(advice):
    root = ET.fromstring(sizes_chart(advice.compare_clusters(counts=(2, 8)), advice).svg())
    (now,) = [point for point in root.iter("circle") if "smp-is-now" in point.get("class")]
    assert now.find("title").text.startswith("4 x ml.p4d.24xlarge")
    across, up, *_ = [line for line in root.iter("line") if line.get("class") == "smp-whisker"]
    assert float(across.get("x1")) < float(now.get("cx")) < float(across.get("x2"))
    assert float(up.get("y2")) < float(now.get("cy")) < float(up.get("y1"))
