"""What a notebook saves is the plan on screen."""

from __future__ import annotations

import asyncio

import pytest

from smp_advisor.live import LiveAdvice
from smp_advisor.notebook import Advisor, saved_output

from .advice import make_advice


class Handle:
    def __init__(self):
        self.written = []

    def update(self, data, **_):
        self.written.append(data)


@pytest.mark.parametrize("keeps", [True, False])
def test_outputs_follow_the_plan_where_a_view_stays(keeps, monkeypatch):
    monkeypatch.setattr(saved_output, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(Advisor, "send", lambda *_: None)
    advisor, handle = Advisor(make_advice()), Handle()

    async def use():
        advisor.outputs.add(handle)
        advisor._on_message(advisor, {"kind": "ready", "keeps": keeps}, [])
        advisor.keep("<b>start</b>")
        advisor.move(batch_size=24)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(use())
    assert bool(handle.written) == keeps
    for data in handle.written[-1:]:
        assert "Your configuration" in data["text/html"]
        assert "Against the recommended plan" in data["text/html"]
        assert "&lt;b&gt;start&lt;/b&gt;" in data["text/html"]
        assert len(data["text/html"]) < 60_000


def test_the_picture_of_a_recommendation_has_no_history():
    html = Advisor(LiveAdvice(make_advice()))._repr_mimebundle_()[0]["text/html"]
    assert "History" not in html
    assert "Kept plans" not in html
