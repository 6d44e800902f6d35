"""Requests for panels: answers for the settings of the request, and slow panels from a thread."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest

from smp_advisor.advice.live import LiveAdvice
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook import panels
from smp_advisor.notebook.panels import PanelRequests, panel_data
from smp_advisor.runs.sources import LogFile
from smp_advisor.runs.watching import Run

from .advice import make_advice


def request(name, settings):
    return {"kind": "panel", "id": f"view-{name}-1", "name": name, "settings": settings}


def test_the_answer_is_for_the_settings_of_the_request():
    sent, advice = [], LiveAdvice(make_advice())
    panels, controls = PanelRequests(advice, sent.append), advice.controls
    moved = {**controls.settings, "batch_size": 8}
    panels.serve(request("why", moved))
    assert (sent[0]["kind"], sent[0]["settings"]["batch_size"]) == ("panel", 8)
    panels.serve(request("why", {**controls.settings, "batch_size": "8"}))
    panels.serve(request("weather", controls.settings))
    assert [answer["kind"] for answer in sent[1:]] == ["failed", "failed"]
    assert "weather" in sent[2]["text"]


def test_a_slow_panel_is_announced_at_once(monkeypatch):
    sent, advice = SimpleQueue(), LiveAdvice(make_advice())
    monkeypatch.setattr(panels, "panel_data", lambda *of: {"batch": of[2].plan.batch_size})
    PanelRequests(advice, sent.put).serve(request("clusters", advice.controls.settings))
    assert sent.get() == {"kind": "started", "id": "view-clusters-1"}
    assert sent.get(timeout=600)["data"] == {"batch": advice.plan.batch_size}


def test_a_page_starts_a_job_once_for_its_price_and_only_after_the_options_are_given(monkeypatch, tmp_path):
    advice, started = LiveAdvice(make_advice()), []
    (tmp_path / "job.log").write_text("step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\n")
    run = Run(LogFile(Path(tmp_path / "job.log")))
    monkeypatch.setattr("smp_advisor.runs.start.start_job", lambda *of, **_: started.append(of[1]) or run)

    def asked(**options):
        return panel_data("start", advice, advice.controls, options)

    assert asked()["job"] == ""
    for text, problem in (("role", "NAME=VALUE"), ("role='arn", "cannot be read: No closing quotation")):
        with pytest.raises(AdvisorError, match=problem):
            asked(options=text)
    offer = asked(options="role=arn:aws:iam::111122223333:role/Training")
    assert "per hour" in offer["lines"][0]
    assert "111122223333" in offer["request"]
    asked(options="role=arn:aws:iam::111122223333:role/Training", confirm="guessed")
    assert started == []
    shown = asked(confirm=offer["job"])
    assert started == [offer["request"]]
    assert "2.50 s" in shown["run"]
    asked(confirm=offer["job"])  # drawn again
    assert len(started) == 1
