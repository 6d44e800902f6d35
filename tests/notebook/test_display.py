"""An advice is displayed as the widget, saved as the plan on screen, and replaced where no view loads."""

import asyncio
import json
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from html import escape

import pytest

import smp_advisor as smpa
from smp_advisor import advise
from smp_advisor.notebook import Advisor, display
from smp_advisor.notebook.display import NOTICE, PATIENCE_SECONDS
from smp_advisor.session import Advice

from .advice import make_advice

CODE = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import smp_advisor, sys
printers = shell.display_formatter.ipython_display_formatter
assert "smp_advisor.notebook" not in sys.modules
from smp_advisor.session import Advice
print(printers.lookup_by_type(Advice).__name__)
"""


def test_importing_the_package_in_ipython_registers_the_display(root):
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "_show_advice"


def test_an_advice_is_shown_once_as_the_widget(advice, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    import smp_advisor

    shown = []
    monkeypatch.setattr(Advisor, "show_now", lambda advisor: shown.extend([advisor]))
    shell = InteractiveShell.instance()
    try:
        smp_advisor.load_ipython_extension(shell)
        live = Advice(advice)
        for value in (advice, live, live):
            assert shell.display_formatter.format(value) == ({}, {})
    finally:
        InteractiveShell.clear_instance()
    assert shown[0].advice.recommended is advice
    # Displayed again, it is the same widget: a move in one output is one in all.
    assert shown[1] is shown[2]
    assert shown[1].advice is live
    assert not hasattr(Advice, "_ipython_display_")


def test_marimo_shows_an_advice_as_html(advice):
    """It calls `_mime_` of a value, and none of IPython's formatters."""
    kind, html = Advisor(advice).advice._mime_()
    assert kind == "text/html"
    assert "test model" in html
    assert "Memory per GPU" in html


def test_showing_an_advisor_again_takes_little_memory():
    def show() -> None:
        Advisor(smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, library="fsdp"))._repr_mimebundle_()

    show()  # imports and tables
    tracemalloc.start()
    try:
        show()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # ipywidgets holds every widget: 20 displays may take 50 MB.
    assert used < 2_500_000


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
        advisor.move(batch_size=24)
        for _ in range(5):
            await asyncio.sleep(0)

    # In a thread: tests in a browser leave a running event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, use()).result()
    advisor.outputs.cell_ended()
    assert bool(handle.written) == keeps
    for data in handle.written[-1:]:
        assert "Your plan." in data["text/html"]
        assert "Against the recommended plan" in data["text/html"]


def test_outputs_without_a_page_have_the_plan_of_the_last_cell():
    advisor, handle = Advisor(make_advice()), Handle()
    advisor.outputs.add(handle)
    advisor.outputs.cell_ended()
    assert handle.written == []
    assert repr(advisor.move(batch_size=24)).startswith("Batch size 20 → 24")  # no quotes in the output of its cell
    advisor.outputs.cell_ended()
    advisor.outputs.cell_ended()
    (data,) = handle.written
    assert "Your plan." in data["text/html"]


@pytest.mark.slow
def test_an_output_stays_small(monkeypatch):
    """All that a notebook saves of it: AWS's 10 billion parameters on 16 instances, recommended and after moves."""
    monkeypatch.setattr(Advisor, "send", lambda *_: None)
    advisor = Advisor(
        advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1", family="gpt2")
    )
    sizes = [len(json.dumps(advisor._repr_mimebundle_()))]
    pipeline = {"sharding": "none", "precision": "fp16", "pipeline_parallel_degree": 8}
    for move in ({"batch_size": 8}, {"tensor_parallel_degree": 8}, pipeline):
        advisor.move(**move)
        sizes.append(len(json.dumps(advisor._repr_mimebundle_())))
    assert advisor.plan != advisor.advice.recommended.plan
    assert max(sizes) < 50_000, sizes


class Loop:
    """An event loop that runs what is due when told."""

    def __init__(self):
        self.now, self.due = 0.0, []

    def time(self):
        return self.now

    def call_later(self, delay, action):
        self.due.append((self.now + delay, action))

    def pass_time(self, seconds):
        self.now += seconds
        late, self.due = [a for t, a in self.due if t <= self.now], [(t, a) for t, a in self.due if t > self.now]
        for action in late:
            action()


@pytest.mark.parametrize("reports", [False, True, None])
def test_a_view_that_reports_stays_and_silence_is_given_up_once_the_last_cell_has_ended(reports, advice, monkeypatch):
    loop, advisor, handle = Loop(), Advisor(advice), Handle()

    def running():
        if reports is None:
            raise RuntimeError("no running event loop")
        return loop

    # Of this test's own: a browser that other tests have open runs a loop in this thread.
    monkeypatch.setattr(asyncio, "get_running_loop", running)
    outputs = advisor.outputs
    outputs.add(handle)
    if reports:
        outputs.arrived(keeps_views=False)
    elif reports is False:
        loop.pass_time(0.7 * PATIENCE_SECONDS)
        outputs.cell_ended()
        loop.pass_time(0.9 * PATIENCE_SECONDS)
        assert handle.written == []
    loop.pass_time((2 if reports else 0.2) * PATIENCE_SECONDS)
    assert [NOTICE in data["text/plain"] for data in handle.written] == ([True] if reports is False else [])
    assert all(escape(NOTICE) in data["text/html"] and "smp-sheet" in data["text/html"] for data in handle.written)
    if reports is False:  # a late view is put back
        outputs.arrived(keeps_views=False)
        outputs.arrived(keeps_views=False)
        assert [NOTICE in data["text/plain"] for data in handle.written] == [True, False]
