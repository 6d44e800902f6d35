"""Panels of the page: answers for the settings of the request, checked scripts and cells."""

import json
import re
from html import unescape
from queue import SimpleQueue

import pytest
from IPython.core.error import UsageError

from smp_advisor import Model, advise
from smp_advisor.estimators import EstimatorReport
from smp_advisor.notebook import panels
from smp_advisor.notebook.checks import pasted
from smp_advisor.notebook.panels import PanelRequests, panel_data
from smp_advisor.session import Advice
from tests.estimators import cells

from .advice import make_advice


def asked_for(name, settings):
    return {"kind": "panel", "id": f"view-{name}-1", "name": name, "settings": settings}


def test_the_answer_is_for_the_settings_of_the_request():
    sent, advice = [], Advice(make_advice())
    panels, controls = PanelRequests(advice, sent.append), advice.controls
    moved = {**controls.settings, "batch_size": 8}
    panels.serve(asked_for("why", moved))
    assert sent[0]["kind"] == "panel"
    assert "Batch size 20 → 8" in unescape(sent[0]["data"]["html"])
    panels.serve(asked_for("why", {**controls.settings, "batch_size": "8"}))
    panels.serve(asked_for("weather", controls.settings))
    assert [answer["kind"] for answer in sent[1:]] == ["failed", "failed"]
    assert "weather" in sent[2]["text"]


def test_the_facts_mark_what_is_inferred_and_what_the_cluster_will_show():
    advice = advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1", tokens="300B")
    page = unescape(re.sub("<[^>]*>", " ", panel_data("facts", advice, advice.controls)["html"]))
    for text in (
        "parameters (inferred from 10 B)",
        "The model's shape is inferred from 10 B",
        "nvidia-smi shows up to",
        "of the elapsed time in training steps",
        "Checkpoints, 0.",
    ):
        assert text in page, text


def test_a_plan_without_a_cell_says_so_and_a_page_has_one_currency():
    whole = make_advice()
    assert panel_data("refusal", Advice(whole), Advice(whole).controls) == {"text": ""}
    advice = Advice(make_advice(optimizer="adafactor"))
    text = panel_data("refusal", advice, advice.controls)["text"]
    assert "adam, sgd" in text
    assert 'script="train.py"' in text
    html = panel_data("facts", advice, advice.controls)["html"]
    assert "$" in html
    assert not re.search(r"\d USD", html)


def test_a_slow_panel_is_announced_at_once(monkeypatch):
    sent, advice = SimpleQueue(), Advice(make_advice())
    monkeypatch.setattr(panels, "panel_data", lambda *of: {"batch": of[2].plan.batch_size})
    PanelRequests(advice, sent.put).serve(asked_for("clusters", advice.controls.settings))
    assert sent.get() == {"kind": "started", "id": "view-clusters-1"}
    assert sent.get(timeout=600)["data"] == {"batch": advice.plan.batch_size}


def test_a_page_shows_the_request_its_price_and_the_line_that_starts_it():
    advice = Advice(make_advice())
    page = unescape(panel_data("start", advice, advice.controls)["html"])
    assert "This job would run on 16 x ml.p4d.24xlarge" in page
    assert "per hour" in page
    assert 'instance_type="ml.p4d.24xlarge"' in page
    assert "<code>%smp_start</code>" in page


BROKEN = cells.V1.replace('"fp16": True', '"fp16": 1')


@pytest.fixture(scope="module")
def small():
    model = Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_257)
    return advise(model, "ml.p4d.24xlarge", instance_count=2, library="smp-v1", sequence_length=1024, precision="fp16")


def test_the_panel_gets_findings_a_correction_and_a_comparison_with_the_plan_on_screen(small):
    shown = pasted(BROKEN, small, small.plan, {})
    json.dumps(shown, allow_nan=False)
    assert shown["summary"].startswith("1 error")
    assert "line 14, EST501" in shown["html"]
    assert shown["corrected"] == cells.V1
    page = unescape(re.sub("<[^>]*>", "", shown["html"]))
    assert all(text in page for text in ("− ", '+ "fp16": True', "tensor_parallel_degree=4", "Batch size"))
    own = pasted(small.cell("v2"), small, small.plan, {})
    assert own["corrected"] == ""
    assert "The same settings" in own["html"]
    named = cells.V1.replace('"microbatches": 4', '"microbatches": pieces')
    unresolved, resolved = (pasted(named, small, small.plan, names)["html"] for names in ({}, {"pieces": 4}))
    assert "pieces is set elsewhere" in unresolved
    assert "pieces is set elsewhere" not in resolved


def test_junk_is_a_sentence(small):
    for junk in ("", "x = 1", "def (", "a: [", "\x00"):
        shown = pasted(junk, small, small.plan, {})
        assert shown["summary"].endswith(".")
        assert shown["html"] == ""


def test_a_cell_with_an_estimator_is_checked_as_one_and_not_run(shell):
    shell.user_ns["pieces"] = 4  # of another cell
    named = cells.V1.replace('"microbatches": 4', '"microbatches": pieces')
    assert shell.run_cell_magic("smp_check", "", named).plan.microbatches == 4
    report = shell.run_cell_magic("smp_check", "", BROKEN)
    assert isinstance(report, EstimatorReport)
    assert [(one.id, one.line) for one in report] == [("EST501", 15)]  # with the magic's own line
    assert report.corrected == cells.V1
    assert "estimator" not in shell.user_ns


def test_recipes_and_requests_are_checked_by_their_path_and_on_the_instance_of_the_line(shell, tmp_path):
    for name, text in (("recipe.yaml", cells.RECIPE), ("request.json", cells.REQUEST), ("job.py", cells.V1)):
        path = tmp_path / name
        path.write_text(text)
        assert shell.run_line_magic("smp_check", str(path)).plan is not None
    path = tmp_path / "recipe.yaml"
    path.write_text(cells.ADAPTER_RECIPE)
    assert shell.run_line_magic("smp_check", f"{path} --instance p5.48xlarge").main.estimate.fits
    assert shell.run_line_magic("smp_check", f"{path} -i p5.48xlarge -n 8").cluster.nodes == 8
    with pytest.raises(UsageError, match="add --instance"):
        shell.run_line_magic("smp_check", f"{path} -n 8")
    with pytest.raises(UsageError, match="does not configure a training job"):
        shell.run_cell_magic("smp_check", "--estimator", "x = 1\n")
