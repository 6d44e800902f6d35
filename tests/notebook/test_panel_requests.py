"""Requests for panels: answers for the settings of the request, and slow panels from a thread."""

from __future__ import annotations

import time

from smp_advisor.advice.live import LiveAdvice
from smp_advisor.notebook import panels
from smp_advisor.notebook.panels import PanelRequests

from .advice import make_advice


def request(name, settings):
    return {"kind": "panel", "id": f"view-{name}-1", "name": name, "settings": settings}


def test_the_answer_is_for_the_settings_of_the_request():
    sent, advice = [], LiveAdvice(make_advice())
    panels, controls = PanelRequests(advice, sent.append), advice.controls
    moved = {**controls.settings, "batch_size": 8}
    panels.serve(request("schedule", moved))
    assert (sent[0]["kind"], sent[0]["settings"]["batch_size"]) == ("panel", 8)
    panels.serve(request("schedule", {**controls.settings, "batch_size": "8"}))
    panels.serve(request("weather", controls.settings))
    assert [answer["kind"] for answer in sent[1:]] == ["failed", "failed"]
    assert "weather" in sent[2]["text"]


def test_a_slow_panel_is_announced_at_once(monkeypatch):
    sent, advice = [], LiveAdvice(make_advice())
    monkeypatch.setattr(panels, "panel_data", lambda *of: {"batch": of[2].plan.batch_size})
    PanelRequests(advice, sent.append).serve(request("clusters", advice.controls.settings))
    assert sent[0] == {"kind": "started", "id": "view-clusters-1"}
    for _ in range(500):
        if len(sent) == 2:
            break
        time.sleep(0.01)
    assert sent[1]["data"] == {"batch": advice.plan.batch_size}
