"""The widget's side of the conversation with its views."""

import json
import re
from dataclasses import replace

import pytest

from smp_advisor import advise
from smp_advisor.errors import ExportError, PlanError
from smp_advisor.notebook import Advisor
from smp_advisor.session import Advice
from smp_advisor.session.settings import settings_of

from .advice import HOSTILE, PIPELINE, make_advice


@pytest.fixture
def advisor(advice, sent):
    return Advisor(advice)


def ask(advisor, number=1, **request):
    advisor._request = {"id": f"view:{number}", **request}


def test_it_starts_at_the_recommendation_in_plain_json(advisor, advice):
    assert (advisor.plan, advisor.cell()) == (advice.plan, Advice(advice).cell())
    json.dumps([advisor._recommendation, advisor._state, advisor._controls], allow_nan=False)


def test_a_view_moves_one_control_without_knowing_what_follows(sent):
    advisor = Advisor(make_advice(PIPELINE))
    ask(advisor, settings=settings_of(PIPELINE), moved="microbatches", value=2)
    assert (advisor.plan.microbatches, advisor.state["settings"]["active_microbatches"]) == (2, 2)


def test_a_view_sets_all_controls_at_once_whatever_it_requested_before(advisor):
    start = settings_of(advisor.plan)
    settings = {**start, "batch_size": 24}
    ask(advisor, settings=settings, moved="batch_size")
    assert advisor.plan.batch_size == 24
    assert advisor.state["answers"] == "view:1"
    ask(advisor, 2, settings={**start, "activation_checkpointing": "group_2"}, moved="activation_checkpointing")
    assert (advisor.plan.batch_size, advisor.plan.activation_checkpointing) == (20, "group_2")


def test_moves_are_sent_to_a_new_view_and_after_each_move(advisor, sent):
    advisor._on_message(advisor, {"kind": "ready"}, [])
    first = sent.pop()
    assert (first["kind"], first["base"]) == ("ahead", settings_of(advisor.plan))
    settings = {**settings_of(advisor.plan), "batch_size": 24}
    ask(advisor, settings=settings, moved="batch_size")
    then = sent.pop()
    assert then["base"] == settings
    assert [plan for _, plan in then["by"]["batch_size"]] == [plan for _, plan in first["by"]["batch_size"]]
    json.dumps([first, then], allow_nan=False)


def test_a_move_costs_at_most_forty_kilobytes_whatever_it_changes(sent):
    """Two degrees that change most of the other moves, from the widest table. The plan on screen is sent first."""
    advisor = Advisor(advise("llama-3-70b", "ml.p5.48xlarge", instance_count=16, library="smp-v2"))
    start = advisor.state["settings"]
    advisor._on_message(advisor, {"kind": "ready"}, [])
    for number, degree in enumerate((16, 1), start=1):
        ask(advisor, number, settings=start, moved="context_parallel_degree", value=degree)
        first, then = ((advisor.state, advisor._controls), sent.pop())
        assert len(json.dumps(first, separators=(",", ":"))) < 6_000
        assert len(json.dumps(then, separators=(",", ":"))) < 34_000


def test_an_answer_that_was_lost_is_sent_again_and_nothing_is_done_twice(advisor):
    advisor.move(batch_size=24)
    advisor.move(batch_size=16)
    advisor._on_message(advisor, {"kind": "act", "id": "view:7", "action": "undo"}, [])
    seen = []
    advisor.observe(lambda change: seen.append(change["new"]["answers"]), "_state")
    advisor._on_message(advisor, {"kind": "again", "id": "view:7"}, [])
    assert (seen, advisor.plan.batch_size) == (["view:7"], 24)


def test_settings_that_cannot_be_combined_keep_plan_and_figures(advisor, advice):
    settings = {**settings_of(advice.plan), "offload_activations": True, "activation_checkpointing": "none"}
    ask(advisor, settings=settings, moved="offload_activations")
    assert advisor.plan is advice.plan
    assert "without activation checkpointing" in advisor.state["problem"]
    assert advisor.state["settings"] == settings
    with pytest.raises(PlanError):
        advisor.cell()


@pytest.mark.parametrize("settings", [{}, {"batch_size": "many"}, None, 5])
def test_nonsense_from_a_page_is_answered_with_a_sentence(advisor, advice, sent, settings):
    ask(advisor, settings=settings)
    assert advisor.plan is advice.plan
    assert advisor.state["problem"] or sent[-1]["kind"] == "failed"


def test_exported_cells_have_the_values_of_the_request_or_a_sentence_against_them(advisor, sent, monkeypatch):
    settings = {**settings_of(advisor.plan), "batch_size": 24}

    def exported(advisor):
        advisor._on_message(advisor, {"kind": "export", "request": {"id": "view:2", "settings": settings}}, [])
        return sent.pop()

    message = exported(advisor)
    assert (message["kind"], message["id"], message["settings"]) == ("cells", "view:2", settings)
    script, estimator = message["sources"]
    assert script.startswith("%%writefile")
    assert '"batch_size": 24' in estimator
    assert advisor.plan.batch_size == 24
    own = make_advice()
    own = replace(own, request=own.request.changed(script="train.py"))  # the user's, which is not written again
    assert len(exported(Advisor(own))["sources"]) == 1

    def refuse(*_, **__):
        raise ExportError("This cannot be written.")

    monkeypatch.setattr("smp_advisor.notebook.advisor.cells_of", refuse)
    assert exported(advisor) == {"kind": "failed", "id": "view:2", "text": "This cannot be written."}


def test_every_rich_form_is_there_and_says_what_the_controls_say(advisor):
    data, _ = advisor._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "test model" in data["text/plain"]
    assert not re.search("History|Kept plans", data["text/html"])
    advisor.move(batch_size=24)
    data, _ = advisor._repr_mimebundle_()
    assert "Your plan." in data["text/html"]
    assert "Batch size 20 → 24" in data["text/plain"]


def panel(advisor, sent, name, **options):
    """Data of a tab for the plan on screen."""
    request = {"kind": "panel", "id": "p", "name": name, "settings": advisor.state["settings"], "options": options}
    advisor._on_message(advisor, request, [])
    assert sent[-1]["kind"] == "panel", sent[-1]
    json.dumps(sent[-1], allow_nan=False)
    return sent[-1]["data"]


def test_the_reasons_are_those_of_the_plan_on_screen(advisor, sent):
    before, own = panel(advisor, sent, "why")["html"], "Your plan against the recommended one"
    assert own not in before
    advisor.move(tensor_parallel_degree=2)
    after = panel(advisor, sent, "why")["html"]
    assert own in after
    assert "It is the fastest that fits." in after
    assert re.search("Tensor parallel degree</th><td[^>]*>4</td><td[^>]*>2</td>", after)
    ladder = advisor.ladder()
    titles = re.findall(r'smp-rung-title">(?:\+ )?([^<]*)<', after)
    every = [*ladder.rungs, *ladder.unused]
    assert titles == [f"{rung.title[:1].upper()}{rung.title[1:]}" for rung in every]
    assert str(ladder) in advisor._repr_mimebundle_()[0]["text/plain"]
    assert "<li>" in panel(advisor, sent, "requirements")["html"]


def test_a_view_of_a_variable_that_holds_another_advice_is_marked(advisor):
    advisor.compare_with({"advice": advisor.advice, "_": advisor})
    assert advisor._older == ""
    advisor.compare_with({"advice": make_advice()})  # no advice on screen
    assert advisor._older == ""
    advisor.compare_with({"advice": Advisor(make_advice())})
    assert advisor._older == "Older: advice holds another advice now."
    advisor.compare_with({"advice": advisor})
    assert advisor._older == ""


def test_a_view_undoes_and_redoes_and_unknown_actions_are_refused(advisor, sent):
    def act(number, action, value=None):
        advisor._on_message(advisor, {"kind": "act", "id": f"view:{number}", "action": action, "value": value}, [])

    for batch in (21, 22, 24):
        request = {"settings": {**settings_of(advisor.plan), "batch_size": batch}, "moved": "batch_size", "gesture": 1}
        ask(advisor, batch, **request)
    assert advisor.state["history"]["undo"].startswith("Batch size 20 → 24")
    act(31, "undo")
    assert (advisor.plan.batch_size, advisor.state["answers"]) == (20, "view:31")
    assert advisor.state["history"]["redo"].startswith("Batch size 20 → 24")
    act(32, "redo")
    assert advisor.plan.batch_size == 24
    for number, (action, value) in enumerate([("pin", 5), ("fly", None), ("adopt", None)], 40):
        act(number, action, value)
        assert (sent[-1]["kind"], sent[-1]["id"]) == ("failed", f"view:{number}")


@pytest.mark.slow
def test_two_widgets_of_one_advice_show_the_same_plan(advisor):
    second = Advisor(advisor.advice)
    second.plan = second.recommended.plan
    advisor.move(batch_size=24)
    assert second.state["snapshot"] == advisor.state["snapshot"]
    second.undo()
    assert advisor.plan.batch_size == 20
    assert advisor.is_recommended


def test_a_users_text_is_escaped_in_the_static_picture(sent):
    html = Advisor(make_advice(name=HOSTILE))._repr_mimebundle_()[0]["text/html"]
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "javascript:" not in html


def test_a_move_that_comes_twice_or_late_does_not_undo_a_newer_one(advisor):
    def moved(number, batch):
        settings = {**settings_of(advisor.advice.recommended.plan), "batch_size": batch}
        return {"id": f"view:{number}", "settings": settings, "moved": "batch_size"}

    for number, batch in ((1, 20), (2, 24)):
        advisor._on_message(advisor, {"kind": "move", "request": moved(number, batch)}, [])
    advisor._request = moved(1, 20)  # the trait had to wait for its turn
    assert advisor.plan.batch_size == 24
    assert advisor.move(batch_size=16).startswith("Batch size 24 → 16")
    advisor._request = moved(2, 24)
    assert advisor.plan.batch_size == 16
    advisor._on_message(advisor, {"kind": "move", "request": {**moved(1, 24), "id": "other:1"}}, [])
    assert advisor.plan.batch_size == 24  # another view counts for itself
    advisor.reset()
    assert advisor.plan is advisor.advice.plan is advisor.advice.recommended.plan
