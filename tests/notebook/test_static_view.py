"""The picture that a saved notebook keeps, and the figures it shares with the view."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from smp_advisor import advise
from smp_advisor.charts.step import stage_groups
from smp_advisor.costs import estimate
from smp_advisor.notebook.advisor import Advisor
from smp_advisor.notebook.figures import figures, fit, likelihood
from smp_advisor.notebook.figures import memory as needed
from smp_advisor.notebook.view_state import recommendation

from .advice import PIPELINE, make_advice


def tree(html: str) -> ET.Element:
    return ET.fromstring(f"<root>{html}</root>")


def test_the_page_has_it_all_fetches_nothing_and_draws_bars_as_text(pipeline_advice):
    """Pages without trust in their content remove drawings, and leave text."""
    html = Advisor(pipeline_advice)._repr_mimebundle_()[0]["text/html"]
    root = tree(html)
    text = "".join(root.itertext())
    for expected in (
        "test model on 16 × ml.p4d.24xlarge",
        "Configuration",
        "global batch",
        needed(pipeline_advice.estimate),
        "Nearest AWS reference",
        "Wrap the model once.",
    ):
        assert expected in text
    assert re.findall(r'\b(?:src="(?!data:)|@import|url\()', html) == []
    assert "<svg" not in html
    assert {link.get("href").partition(":")[0] for link in root.iter("a")} == {"https"}
    (peak,) = [row for row in ([*row.itertext()] for row in root.iter("tr")) if row[0] == "Peak"]
    assert f"{pipeline_advice.estimate.memory.peak.total_gib:.2f}" in peak
    assert "█" in peak[-2]


def test_amounts_are_no_formulas():
    root = tree(Advisor(make_advice(tokens=300e9))._repr_mimebundle_()[0]["text/html"])
    assert "".join(root.itertext()).count("$") >= 2
    texts = [text for element in root.iter() for text in (element.text, element.tail) if text and "$" in text]
    assert set(texts) == {"$"}  # a page typesets what is between two of them in one text


def test_the_glossary_explains_labels_without_network(pipeline_advice):
    shown = recommendation(pipeline_advice)
    labels = {*shown["rows"], *shown["figures"], *shown["categories"], *shown["seconds"]}
    assert set(shown["tooltips"]) <= labels
    assert set(shown["rows"]) <= set(shown["tooltips"])
    terms = {entry["term"] for entry in shown["glossary"]}
    assert {"bubble", "tensor parallel degree", "headroom", "pipeline schedule"} <= terms
    assert not terms & {"context parallel degree", "hybrid shard degree"}  # of other libraries


def test_one_figure_is_rounded_once(advice):
    at = recommendation(advice)["recommended"]["costs"]
    peak, step = advice.estimate.memory.peak.total_gib, advice.estimate.step_seconds
    assert max(stage["total_gib"] for stage in at["stages"]) == pytest.approx(peak, abs=1e-6)
    assert at["step_seconds"] == pytest.approx(step, rel=1e-8)


def test_an_inferred_shape_and_code_are_marked():
    shown = recommendation(advise("10B", "ml.p4d.24xlarge", instance_count=2, sequence_length=512))
    facts = {fact["label"]: fact for fact in shown["facts"]}
    assert facts["Model"]["text"].endswith("(inferred from 10 B)")
    assert facts["Code"]["mark"] == "inferred"


def test_equal_stages_are_one_bar(advice):
    deep = make_advice(replace(PIPELINE, pipeline_parallel_degree=16, tensor_parallel_degree=1, microbatches=16))
    groups = stage_groups(deep.estimate.memory.stages)
    assert [group.label for group in groups] == ["Stage 0", "Stages 1–14", "Stage 15"]
    assert sum(group.is_peak for group in groups) == 1
    assert [group.label for group in stage_groups(advice.estimate.memory.stages)] == ["Each GPU"]


def test_days_and_total_cost_are_told_where_tokens_are_known(advice):
    assert [figure.label for figure in figures(advice.model, advice.estimate)][-2:] == ["Price", "Effective time"]
    trained = make_advice(tokens=300e9)
    run, effective = figures(trained.model, trained.estimate)[-2:]
    assert run.label == "Full run"
    assert run.value.endswith(" days")
    assert re.search(r"; [\d,]+ USD \([\d,]+ to [\d,]+\) in total$", run.note)
    assert effective.value == f"{100 * trained.estimate.effective.share:.1f} %"
    assert "checkpoints" in effective.note


def test_the_verdict_the_figures_and_the_chart_have_one_memory(advice):
    now = advice.estimate
    value, note = figures(advice.model, now)[0][1:3]
    assert value == f"{now.needed_gib:.1f} of {now.usable_gpu_memory_gib:.1f} GiB"
    assert needed(now) == f"{value} per GPU"
    assert advice.chart("memory").rows[-1][1] == f"{now.needed_gib:.2f}"
    cached = now.memory.peak.cached_gib
    assert cached > 0.05
    kept = f"nvidia-smi shows up to {cached:.1f} GiB more, which PyTorch keeps and can release"
    assert note.replace("\N{NO-BREAK SPACE}", " ").endswith(kept)
    large = replace(advice.plan, batch_size=200)
    over = estimate(advice.model, advice.cluster, advice.job, large)
    assert figures(advice.model, over)[0].note.startswith("±")


def test_the_verdict_has_three_states(advice):
    doubtful = replace(advice.estimate, fit_probability=0.9)
    assert (fit(doubtful, 0.9), fit(doubtful, 0.95)) == ("fits", "risk")
    over = estimate(advice.model, advice.cluster, advice.job, replace(advice.plan, batch_size=200))
    assert fit(over, 0.0) == "over"
    assert needed(over).startswith(f"{over.needed_gib:,.1f} of ")
    assert likelihood(doubtful, 0.95) == "90.0 % likely, 95 % required"
