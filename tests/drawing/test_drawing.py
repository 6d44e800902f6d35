"""Drawings: well-formed, and with every figure."""

from __future__ import annotations

import re
from functools import partial
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.charts.chart import Chart
from smp_advisor.charts.plans import Axis, Point, plane
from smp_advisor.errors import AdvisorError
from smp_advisor.marks import linear, log_ticks, short, ticks

SVG = "{http://www.w3.org/2000/svg}"


HOSTILE = "<img src=x onerror=\"alert(1)\"> & 'text'"
_POINTS = [
    Point(162, 98300, "smp-point", HOSTILE, "1"),
    Point(12.8, 124000, "smp-point smp-is-now", "16 nodes", "16", 7, 1, ((9, 28), (90000, 270000))),
]
_TIME = Axis("days", 0.9 * 9, 1.1 * 162, is_log=True, limit=("deadline", 14))
_COST = Axis("USD", 0.92 * 90000, 1.08 * 270000, is_log=True, limit=("budget", 200000))


@pytest.mark.parametrize(
    "svg",
    [
        plane(_TIME, _COST, _POINTS, [("smp-curve", _POINTS)], HOSTILE, 640),
        plane(Axis("GiB", 0, 170), Axis("tokens/s", 0, 130000), _POINTS, (), "Plans", 320),
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
        assert circle.find("title").text
    assert root.attrib["aria-label"]
    assert not list(root.iter("img"))


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.integers(1, 20))
def test_ticks_are_inside_their_range(low, span, count):
    values = ticks(low, low + span, count)
    assert len(values) <= 2 * count + 2
    slack = 1e-6 * max(abs(low), span)
    assert all(low - slack <= value <= low + span + slack for value in values)


@given(st.floats(1e-3, 1e9), st.floats(1.01, 1e4), st.integers(3, 12))
def test_logarithmic_ticks_are_inside_their_range_and_increase(low, ratio, count):
    values = log_ticks(low, low * ratio, count)
    assert values == sorted(values)
    assert all(low <= value <= low * ratio for value in values)


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
    draw = partial(plane, Axis("GiB", 0, 170), Axis("tokens/s", 0, 130000), _POINTS, (), "Plans & <all>")
    chart = Chart(
        title="Title", columns=("a", "b"), rows=(("1", "<2>"),), draw=draw, notes=("Note.",), key=("Fast", "", "Slow")
    )
    assert str(chart).splitlines() == ["Title", "a  b", "1  <2>", "Note."]
    html = chart._repr_html_()
    assert "&lt;2&gt;" in html
    assert not re.search("<script|<svg|<style", re.sub('src="[^"]*"', "", html))
    (description, data), *more = re.findall(r'<img alt="([^"]*)"[^>]* src="data:image/svg\+xml,([^"]+)">', html)
    assert more == []
    picture = ET.fromstring(unquote(data))
    assert description == "Plans &amp; &lt;all&gt;"
    assert "light dark;background:Canvas" in picture.attrib["style"]
    assert {"Fast", "Slow"} <= {text.text for text in picture.iter(f"{SVG}text")}
    assert [part.get("class") for part in picture.iter(f"{SVG}rect")][-2:] == ["smp-part smp-c0", "smp-part smp-c2"]
    path = chart.save(tmp_path / "chart.svg", 500)
    assert ET.fromstring(path.read_text("utf-8")).attrib["width"] == "500"
    with pytest.raises(AdvisorError, match=r"SVG file: write 'chart\.svg'"):
        chart.save(tmp_path / "chart.png")
    for width in (10, 1e9, "wide", True):
        with pytest.raises(AdvisorError, match="pixels wide"):
            chart.svg(width)
