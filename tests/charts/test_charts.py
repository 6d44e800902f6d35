"""Charts: their figures are those of the estimate, and their drawings are well-formed with every figure."""

import re
from functools import partial
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from smp_advisor.charts.chart import Chart
from smp_advisor.charts.plans import Axis, Point, plane, plotted_plans, points_of, sizes_chart
from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.marks import linear, log_ticks, short, ticks


@pytest.fixture(scope="module")
def advice():
    return smpa.advise("10B", "ml.p4d.24xlarge", instance_count=4, tokens="20B", library="smp-v1", family="gpt2")


@pytest.mark.slow
def test_a_drawn_chart_has_a_drawing_as_wide_as_its_place_and_a_table(advice):
    assert advice.chart("time").fitted(640) == ""
    chart = advice.chart("clusters")
    for width, shown in ((640, 640), ("wide", 760), (-1, 280)):
        drawing = chart.fitted(width)
        assert ".smp-point {fill: var(--smp-c)" in drawing  # the page has no style for it
        assert "var(--smp-ink, " in drawing
        assert re.sub("<style>.*?</style>", "", drawing) == chart.draw(shown)
    assert all(len(row) == len(chart.columns) for row in chart.rows)
    root = ET.fromstring(chart.draw(640))
    assert root.attrib["aria-label"]
    assert [title.text for title in root.iter("title")]


def test_a_chart_without_a_name_of_its_own_is_refused(advice):
    with pytest.raises(AdvisorError, match="no chart 'pie'"):
        advice.chart("pie")


def test_memory_and_time_are_tables_with_bars_in_proportion(advice):
    memory, time = advice.chart("memory", 3), advice.chart("time")
    *parts, peak = memory.rows
    assert len(peak[-1]) == 24  # the usable memory
    assert peak[-1].count("█") == round(24 * float(peak[1]) / advice.cluster.instance.usable_gpu_memory_gib)
    assert sum(float(row[1]) for row in parts) == pytest.approx(float(peak[1]), abs=0.06)
    assert max(time.rows, key=lambda row: float(row[2].split()[0])) == max(time.rows, key=lambda row: len(row[-1]))
    assert f"The recommended plan needs {advice.estimate.needed_gib:.1f}." in memory._repr_html_()
    assert f"The recommended plan needs {advice.estimate.needed_gib:.1f}." not in str(advice.chart("memory"))


def test_alternatives_are_plans_with_their_own_estimates(advice):
    chart, plans = advice.chart("alternatives"), plotted_plans(advice)
    assert len(plans) == len(chart.rows) == len(points_of(advice.recommended))
    for index in (0, len(plans) // 2, len(plans) - 1):
        value = estimate(advice.model, advice.cluster, advice.job, plans[index])
        assert chart.rows[index][3] == f"{value.headroom_gib:.1f}"
        assert float(chart.rows[index][1].replace(",", "")) == pytest.approx(value.tokens_per_second, rel=0.01)
    assert plans[0] == advice.plan


def test_the_present_cluster_has_its_interval(advice):
    root = ET.fromstring(sizes_chart(advice.compare_clusters(counts=(2, 8)), advice).draw(640))
    (now,) = [point for point in root.iter("circle") if "smp-is-now" in point.get("class")]
    assert now.find("title").text.startswith("4 x ml.p4d.24xlarge")
    across, up, *_ = [line for line in root.iter("line") if line.get("class") == "smp-whisker"]
    assert float(across.get("x1")) < float(now.get("cx")) < float(across.get("x2"))
    assert float(up.get("y2")) < float(now.get("cy")) < float(up.get("y1"))


SVG = "{http://www.w3.org/2000/svg}"


HOSTILE = "<img src=x onerror=\"alert(1)\"> & 'text'"
_POINTS = [
    Point(162, 98300, "smp-point", HOSTILE, "1"),
    Point(12.8, 124000, "smp-point smp-is-now", "16 nodes", "16", 7, 1, ((9, 28), (90000, 270000))),
]
_TIME = Axis("days", 0.9 * 9, 1.1 * 162, limit=("deadline", 14))
_COST = Axis("USD", 0.92 * 90000, 1.08 * 270000, limit=("budget", 200000))


@pytest.mark.parametrize(
    "svg",
    [
        plane(_TIME, _COST, _POINTS, [(HOSTILE, _POINTS)], HOSTILE, 640),
        plane(Axis("GiB", 10, 170), Axis("tokens/s", 9000, 130000), _POINTS, (), "Plans", 320),
    ],
)
def test_a_drawing_is_inside_its_frame_names_its_marks_and_escapes_texts(svg):
    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for shape in root.iter("rect"):
        left, top = float(shape.attrib["x"]), float(shape.attrib["y"])
        assert -1 <= left <= left + float(shape.attrib["width"]) <= width + 1
        assert -1 <= top <= top + float(shape.attrib["height"]) <= height + 1
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
        assert "smp-here" in circle.attrib["class"] or circle.find("title").text  # the legend's has no figures
    assert root.attrib["aria-label"]
    assert not list(root.iter("img"))


@given(st.floats(1e-3, 1e9), st.floats(1.01, 1e4), st.integers(3, 12), st.booleans())
def test_ticks_are_inside_their_range_and_increase(low, ratio, count, is_log):
    values = (log_ticks if is_log else ticks)(low, low * ratio, count)
    assert len(values) <= 2 * count + 2
    assert values == sorted(values)
    assert all(low * (1 - 1e-6) <= value <= low * ratio * (1 + 1e-6) for value in values)


@given(st.floats(0.001, 9e14))
def test_short_numbers_have_three_significant_digits(value):
    text = short(value)
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1)
    number = float(text.rstrip("kMBT")) * scale
    assert number == pytest.approx(value, rel=0.0051, abs=0.00005)
    assert len(text) <= 6


def test_a_scale_without_a_span_is_constant():
    assert linear(5, 5, 10, 90)(5) == 10


def test_a_chart_is_a_table_a_picture_and_a_file(tmp_path):
    """JupyterLab and GitHub remove drawings and styles from pages without trust, and leave images."""
    curves = [("Fast", _POINTS), ("Slow", _POINTS[:1])]
    draw = partial(plane, _TIME, _COST, _POINTS, curves, "Plans & <all>")
    chart = Chart(title="Title", columns=("a", "b"), rows=(("1", "<2>"),), draw=draw, notes=("Note.",))
    assert str(chart).splitlines() == ["Title", "a  b", "1  <2>", "Note."]
    html = chart._repr_html_()
    assert "&lt;2&gt;" in html
    assert not re.search("<script|<svg|<style", re.sub('src="[^"]*"', "", html))
    (description, data), *more = re.findall(r'<img alt="([^"]*)"[^>]* src="data:image/svg\+xml,([^"]+)">', html)
    assert more == []
    picture = ET.fromstring(unquote(data))
    assert description == "Plans &amp; &lt;all&gt;"
    assert "light dark;background:Canvas" in picture.attrib["style"]
    assert "--jp-" not in unquote(data)
    assert {"Fast", "Slow"} <= {text.text for text in picture.iter(f"{SVG}text")}
    assert [part.get("class") for part in picture.iter(f"{SVG}rect")][-2:] == ["smp-part smp-g0", "smp-part smp-g1"]
