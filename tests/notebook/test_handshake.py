"""Waiting for a view that may never load."""

from __future__ import annotations

import asyncio
from html import escape

import pytest

from smp_advisor.errors import PlanError
from smp_advisor.notebook import Advisor
from smp_advisor.notebook.display import NOTICE, PATIENCE_SECONDS, Fallback, Handshake, fallback_bundle


class Loop:
    """An event loop that runs what is due when told."""

    def __init__(self):
        self.now, self.due = 0.0, []

    def call_later(self, delay, action):
        self.due.append((self.now + delay, action))

    def pass_time(self, seconds):
        self.now += seconds
        late, self.due = [a for t, a in self.due if t <= self.now], [(t, a) for t, a in self.due if t > self.now]
        for action in late:
            action()


class Events:
    def __init__(self):
        self.callbacks = []

    def register(self, event, callback):
        assert event == "post_run_cell"
        self.callbacks.append(callback)

    def unregister(self, event, callback):
        assert event == "post_run_cell"
        self.callbacks.remove(callback)


@pytest.fixture
def loop(monkeypatch):
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def said():
    return []


@pytest.fixture
def handshake(loop, events, said):
    made = Handshake(
        replace=lambda: said.append("replaced"),
        restore=lambda: said.append("restored"),
        events=events,
        clock=lambda: loop.now,
    )
    return made.start()


def test_silence_is_given_up_once_the_last_cell_has_ended_and_a_late_view_is_put_back(handshake, loop, events, said):
    loop.pass_time(0.7 * PATIENCE_SECONDS)
    events.callbacks[0]()
    loop.pass_time(0.9 * PATIENCE_SECONDS)
    assert said == []
    loop.pass_time(0.2 * PATIENCE_SECONDS)
    assert (said, events.callbacks) == (["replaced"], [])
    handshake.arrived()
    handshake.arrived()
    assert said == ["replaced", "restored"]


def test_a_view_that_reports_stays(handshake, loop, said):
    handshake.arrived()
    loop.pass_time(2 * PATIENCE_SECONDS)
    assert said == []


def test_where_no_loop_runs_nothing_is_replaced(events, said, monkeypatch):
    def none_runs():
        raise RuntimeError("no running event loop")

    # Of this test's own: a browser that other tests have open runs a loop in this thread.
    monkeypatch.setattr(asyncio, "get_running_loop", none_runs)
    Handshake(replace=lambda: said.append("replaced"), restore=lambda: None, events=events).start()
    assert (said, events.callbacks) == ([], [])


def children(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from children(child)


def one(fallback, **traits):
    return next(w for w in children(fallback.widget) if all(getattr(w, k, None) == v for k, v in traits.items()))


def test_the_fall_back_says_what_to_do_and_moves_the_same_advisor(advice):
    advisor = Advisor(advice)
    fallback = Fallback(advisor)
    assert any(escape(NOTICE) in str(getattr(w, "value", "")) for w in children(fallback.widget))
    one(fallback, description="Batch size").value = 24
    assert advisor.plan.batch_size == 24
    assert any("Batch size 20 → 24" in str(getattr(w, "value", "")) for w in children(fallback.widget))
    advisor.move(batch_size=16)
    assert one(fallback, description="Batch size").value == 16
    one(fallback, description="Reset to recommended").click()
    assert advisor.plan is advice.plan


def test_the_fall_back_refuses_in_a_sentence_and_keeps_the_picture(advice):
    advisor = Advisor(advice)
    fallback = Fallback(advisor)
    one(fallback, description="Sharding").value = "sharded_8"
    one(fallback, description="Pipeline parallel degree").value = 2
    assert any("exclude each other" in str(getattr(w, "value", "")) for w in children(fallback.widget))
    with pytest.raises(PlanError):
        advisor.move(pipeline_parallel_degree=2)
    bundle = fallback_bundle(Advisor(advice))
    assert "smp-static" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
