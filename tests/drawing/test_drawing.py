"""Drawings: the same text as that of the front end, well-formed, and with every figure."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.charts.bar_drawings import ladder_table
from smp_advisor.charts.chart import Chart
from smp_advisor.charts.marks import linear, log_ticks, short, ticks
from smp_advisor.errors import AdvisorError

from .cases import CASES, HOSTILE, cases

DRAWN = cases()


def test_bars_are_drawn_as_by_the_front_end():
    """The front end draws them while a slider moves, and its tests compare its own drawings with the same file."""
    bars = [case for case in DRAWN if case["kind"] == "bars"]
    stored = json.loads(CASES.read_text("utf-8"))
    assert json.loads(json.dumps(bars)) == stored, "run tests/drawing/cases.py and compare the drawings"


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case["name"])
def test_a_drawing_is_inside_its_frame_and_names_its_marks(case):
    root = ET.fromstring(case["svg"])
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert width == case["width"]
    for shape in root.iter("rect"):
        left, top = float(shape.attrib["x"]), float(shape.attrib["y"])
        assert -1 <= left <= left + float(shape.attrib["width"]) <= width + 1
        assert -1 <= top <= top + float(shape.attrib["height"]) <= height + 1
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
        assert circle.find("title").text
    assert root.attrib["aria-label"]


def test_the_ladder_is_a_table_with_its_reasons():
    """Views show it as it is, so it escapes its texts."""
    data = next(case["data"] for case in DRAWN if case["kind"] == "ladder")
    table = ET.fromstring(ladder_table(data))
    assert not list(table.iter("img"))
    rows = [" ".join(row.itertext()) for row in table.iter("tr")]
    assert any(HOSTILE.removeprefix("+ ") in row and "With 2 GPUs." in row and "29.0 GiB" in row for row in rows)
    assert "no such plan" in rows[-1]


@pytest.mark.parametrize(
    ("because", "shown"),
    [
        ("The plan would not fit, either, with it.", ""),
        (
            "The plan would not fit, either, (with 384 microbatches instead of 4).",
            "With 384 microbatches instead of 4.",
        ),
        ("The plan would fit (with fp16).", "With fp16."),
        ("Training would be slower (with fp16).", "Training would be slower (with fp16)."),
    ],
)
def test_a_reason_of_the_ladder_is_a_sentence_that_does_not_repeat_the_decision(because, shown):
    row = {
        "title": "Offloading",
        "memory": 29.0,
        "step": None,
        "fits": False,
        "decision": "does not fit",
        "used": False,
    }
    table = ET.fromstring(ladder_table({"limit": 39.4, "rows": [{**row, "because": because}]}))
    notes = [note.text for note in table.iter("span") if note.get("class") == "smp-note"]
    assert notes[1:] == ([shown] if shown else [])


def test_texts_of_users_are_never_markup():
    hostile = [case for case in DRAWN if HOSTILE in case["data"].values() or case["kind"] in {"bars", "ladder"}]
    for root in [ET.fromstring(case["svg"]) for case in hostile]:
        assert not list(root.iter("img"))
    assert any("<img src=x" in text for text in ET.fromstring(hostile[0]["svg"]).itertext())


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
    case = next(case for case in DRAWN if case["kind"] == "sweep")
    chart = Chart(
        kind="sweep", title="Title", data=case["data"], columns=("a", "b"), rows=(("1", "<2>"),), notes=("Note.",)
    )
    assert str(chart).splitlines() == ["Title", "a  b", "1  <2>", "Note."]
    assert "&lt;2&gt;" in chart.as_html()
    assert "<script" not in chart.as_html()
    path = chart.save(tmp_path / "chart.svg", 500)
    assert ET.fromstring(path.read_text("utf-8")).attrib["width"] == "500"
    with pytest.raises(AdvisorError, match=r"SVG file: write 'chart\.svg'"):
        chart.save(tmp_path / "chart.png")
    for width in (10, 1e9, "wide", True):
        with pytest.raises(AdvisorError, match="pixels wide"):
            chart.svg(width)


def test_a_notebook_that_is_not_trusted_shows_the_drawing():
    """JupyterLab and GitHub remove drawings and styles from its HTML, and leave images."""
    case = next(case for case in DRAWN if case["kind"] == "bars")
    chart = Chart(kind="bars", title="T", data=case["data"], columns=("a",), rows=(("<2>",),), key=("Fast", "", "Slow"))
    html = chart._repr_html_()
    assert "<svg" not in html
    assert "<style" not in html
    assert "&lt;2&gt;" in html
    documents = re.findall(r'<img alt="([^"]*)"[^>]* src="data:image/svg\+xml;base64,([^"]+)">', html)
    picture, *swatches = [ET.fromstring(base64.b64decode(data)) for _, data in documents]
    assert picture.attrib["aria-label"] == unescape(documents[0][0])
    assert [root[0].text.count("fill: #") for root in swatches] == [1, 1]
    assert all("light dark;background:Canvas" in root.attrib["style"] for root in (picture, *swatches))
