"""The picture that a saved notebook keeps, its figures, and the advice for every library with controls of its own."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from smp_advisor import advise
from smp_advisor.charts import chart_of
from smp_advisor.charts.step import stage_groups
from smp_advisor.costs import estimate
from smp_advisor.libraries.schema import schema
from smp_advisor.notebook.advisor import Advisor
from smp_advisor.notebook.figures import fit, likelihood
from smp_advisor.notebook.figures import memory as needed
from smp_advisor.notebook.view_state import recommendation
from smp_advisor.session import control_state
from smp_advisor.session.settings import plan_of, require_settings, settings_of

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
        needed(pipeline_advice.estimate).removesuffix(" per GPU"),
        "GiB free",
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


def test_equal_stages_are_one_bar(advice):
    deep = make_advice(replace(PIPELINE, pipeline_parallel_degree=16, tensor_parallel_degree=1, microbatches=16))
    groups = stage_groups(deep.estimate.memory.stages)
    assert [group.label for group in groups] == ["Stage 0", "Stages 1–14", "Stage 15"]
    assert sum(group.is_peak for group in groups) == 1
    assert [group.label for group in stage_groups(advice.estimate.memory.stages)] == ["Each GPU"]


def test_the_verdict_and_the_chart_have_one_memory(advice):
    now = advice.estimate
    assert needed(now) == f"{now.needed_gib:.1f} of {now.usable_gpu_memory_gib:.1f} GiB per GPU"
    assert chart_of(advice, "memory").rows[-1][1] == f"{now.needed_gib:.2f}"


def test_the_verdict_has_three_states(advice):
    doubtful = replace(advice.estimate, fit_probability=0.9)
    assert (fit(doubtful, 0.9), fit(doubtful, 0.95)) == ("fits", "risk")
    over = estimate(advice.model, advice.cluster, advice.job, replace(advice.plan, batch_size=200))
    assert fit(over, 0.0) == "over"
    assert needed(over).startswith(f"{over.needed_gib:,.1f} of ")
    assert likelihood(doubtful, 0.95) == "fits with 90.0 % probability (you requested 95 %)"


ASKED = {
    "smp-v2": {"model": "7B", "family": "llama", "sequence_length": 1024},
    "fsdp": {"model": "7B", "sequence_length": 1024},
    "ddp": {"model": "350M", "sequence_length": 512},
    "training-compiler": {"model": "124M", "sequence_length": 512},
    "smp-v1-tensorflow": {"model": "gpt2-xl", "sequence_length": 512},
}


@pytest.fixture(scope="module", params=ASKED)
def of_library(request):
    asked = dict(ASKED[request.param])
    return advise(asked.pop("model"), "ml.p4d.24xlarge", library=request.param, max_tokens_per_step=100_000, **asked)


def test_settings_make_the_plan_again(of_library):
    settings = settings_of(of_library.plan)
    assert plan_of(of_library, settings) == of_library.plan
    assert require_settings(settings, of_library.plan.library) == settings
    moved = {**settings, "batch_size": settings["batch_size"] * 2}
    assert plan_of(of_library, moved).batch_size == moved["batch_size"]
    assert settings_of(plan_of(of_library, moved)) == moved


def test_the_recommendation_goes_to_the_view(of_library):
    told, reference = recommendation(of_library), of_library.reference
    assert len(told["names"]) == len(told["rows"]) == len(told["recommended"]["configuration"])
    assert (reference is None) == (of_library.plan.library != "smp-v2")
    html = Advisor(of_library)._repr_mimebundle_()[0]["text/html"]
    assert schema(of_library.plan.library).name in html
    assert ("Nearest AWS reference" in html) == (reference is not None)


def test_offloading_and_checkpointing_follow_each_other():
    advice = advise("7B", "ml.p4d.24xlarge", library="smp-v2", family="llama", sequence_length=1024)
    bench = control_state.recommended(advice)
    on = control_state.move(bench, "offload_activations", True)
    assert on.settings["activation_checkpointing"] == "each"
    assert on.plan.sm_activation_offloading is True
    off = control_state.move(on, "activation_checkpointing", "none")
    assert off.settings["offload_activations"] is False
    assert off.plan.sm_activation_offloading is False


def test_a_page_in_the_same_notebook_changes_nothing_of_the_widget(root):
    """Both have their style in the notebook's document: a rule for a class of both would hold for the other, too."""
    names = [
        set(re.findall(r"\.(smp-[\w-]+)", (root / path).read_text("utf-8")))
        for path in ("js/src/widget/widget.css", "smp_advisor/core/data/sheet.css")
    ]
    # These have the same meaning in both, or are named below a class of their own.
    assert names[0] & names[1] <= {"smp-hidden", "smp-note", "smp-over", "smp-primary", "smp-sheet", "smp-title"}
