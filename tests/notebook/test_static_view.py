"""The picture that a saved notebook keeps, and the figures it shares with the view."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from smp_advisor.costs import estimate
from smp_advisor.notebook.charts import memory_chart
from smp_advisor.notebook.figures import figures, stage_groups, verdict
from smp_advisor.notebook.static_view import static_html
from smp_advisor.notebook.view_state import costs, recommendation

from .advice import PIPELINE, make_advice


def tree(html: str) -> ET.Element:
    return ET.fromstring(f"<root>{html}</root>")


def test_the_picture_is_well_formed_and_says_it_all(pipeline_advice):
    shown = recommendation(pipeline_advice)
    html = static_html(shown, shown["recommended"])
    text = "".join(tree(html).itertext())
    for expected in (
        "test model on 16 × ml.p4d.24xlarge",
        "Recommended configuration",
        "Global batch",
        verdict(pipeline_advice.estimate),
        "Nearest AWS reference",
        "Wrap the model once.",
        "1,234 plans enumerated",
    ):
        assert expected in text


def test_it_fetches_nothing(pipeline_advice):
    shown = recommendation(pipeline_advice)
    html = static_html(shown, shown["recommended"])
    assert re.findall(r"\b(?:src|@import|url\()", html) == []


def test_bars_are_as_wide_as_their_share(advice):
    shown, at = recommendation(advice), costs(advice.estimate)
    (svg,) = tree(memory_chart(shown, at)).iter("svg")
    widths = [float(rect.get("width").rstrip("%")) for rect in svg.iter("rect")]
    lines = [float(line.get("x1").rstrip("%")) for line in svg.iter("line")]
    peak = advice.estimate.memory.peak.total_gib
    assert sum(widths) / lines[0] == pytest.approx(peak / shown["usable_gib"], rel=1e-3)
    assert "GiB usable" in svg.get("aria-label")


def test_equal_stages_are_one_bar():
    advice = make_advice(
        PIPELINE.__class__(
            **{**_fields(PIPELINE), "pipeline_parallel_degree": 16, "tensor_parallel_degree": 1, "microbatches": 16}
        )
    )
    groups = stage_groups(advice.estimate.memory.stages)
    assert [group.label for group in groups] == ["Stage 0", "Stages 1–14", "Stage 15"]
    assert sum(group.is_peak for group in groups) == 1


def _fields(plan):
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_a_plan_without_pipeline_has_one_bar_for_each_gpu(advice):
    assert [group.label for group in stage_groups(advice.estimate.memory.stages)] == ["Each GPU"]


def test_days_and_total_cost_are_told_where_tokens_are_known(advice):
    assert [figure.label for figure in figures(advice.estimate)][-1] == "Price"
    trained = make_advice(tokens=300e9)
    run = figures(trained.estimate)[-1]
    assert run.label == "Whole run"
    assert run.value.endswith(" days")
    assert run.note.startswith("$")


def test_the_memory_figure_says_what_is_needed_where_the_allocator_keeps_more(advice):
    now = advice.estimate
    peak = now.memory.peak.total_gib
    assert peak - now.needed_gib > 0.05
    memory = figures(now)[0]
    note = memory.note.replace("\N{NO-BREAK SPACE}", " ")
    assert memory.value == f"{peak:.1f} of {now.usable_gpu_memory_gib:.1f} GiB"
    assert note.startswith(f"{now.needed_gib:.1f} GiB needed, ± ")
    assert note.endswith(" GiB (95 %); the rest is the allocator's spare")
    assert f"Fits with {now.usable_gpu_memory_gib - now.needed_gib:.1f} GiB to spare" in verdict(now)
    large = replace(advice.plan, batch_size=200)
    over = estimate(advice.model, advice.cluster, advice.job, large)
    assert figures(over)[0].note.startswith("±")


def test_the_verdict_says_how_much_is_missing(advice):
    large = replace(advice.plan, batch_size=200)
    result = estimate(advice.model, advice.cluster, advice.job, large)
    assert verdict(result).startswith(f"Does not fit: {-result.headroom_gib:,.1f} GiB too much")
