"""What a notebook saves is the plan on screen."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from smp_advisor import advise
from smp_advisor.notebook import Advisor, display

from .advice import make_advice


class Handle:
    def __init__(self):
        self.written = []

    def update(self, data, **_):
        self.written.append(data)


@pytest.mark.parametrize("keeps", [True, False])
def test_outputs_follow_the_plan_where_a_view_stays(keeps, monkeypatch):
    monkeypatch.setattr(display, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(Advisor, "send", lambda *_: None)
    advisor, handle = Advisor(make_advice()), Handle()

    async def use():
        advisor.outputs.add(handle)
        advisor._on_message(advisor, {"kind": "ready", "keeps": keeps}, [])
        advisor.keep("<b>start</b>")
        advisor.move(batch_size=24)
        for _ in range(5):
            await asyncio.sleep(0)

    # In a thread: tests in a browser leave a running event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, use()).result()
    assert bool(handle.written) == keeps
    for data in handle.written[-1:]:
        assert "Your plan." in data["text/html"]
        assert "Against the recommended plan" in data["text/html"]
        assert "&lt;b&gt;start&lt;/b&gt;" in data["text/html"]


@pytest.mark.slow
def test_an_output_stays_small(monkeypatch):
    """All that a notebook saves of it: AWS's 10 billion parameters on 16 instances, recommended and after moves."""
    monkeypatch.setattr(Advisor, "send", lambda *_: None)
    advisor = Advisor(advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1"))
    sizes = [len(json.dumps(advisor._repr_mimebundle_()))]
    moves = [
        {"batch_size": 8},
        {"tensor_parallel_degree": 8},
        {"sharding": "none", "precision": "fp16", "pipeline_parallel_degree": 8},
    ]
    for number, move in enumerate(moves):
        advisor.move(**move)
        advisor.keep(f"{number}{'<' * 59}")  # the longest name, and each character escaped
        sizes.append(len(json.dumps(advisor._repr_mimebundle_())))
    assert advisor.plan != advisor.advice.recommended.plan
    assert max(sizes) < 45_000, sizes
