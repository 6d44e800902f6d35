"""A local run as a person sees it: started, watched live, its kernel restarted in the middle, and what it taught."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.lab_only, pytest.mark.torch, pytest.mark.slow]

START = """import smp_advisor as smpa
advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
run = advice.start(local=True, folder="local run", steps=36)
run"""
RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
AGAIN = """%load_ext smp_advisor
run = %smp_watch "local run"
"""
LEARN = """second = run.calibrated()
print(second.learned.headline, second.plan)"""


def test_a_local_run_is_watched_across_kernels_and_teaches(open_notebook, refused):
    notebook = open_notebook(START, AGAIN, LEARN)
    notebook.run(0)
    strip = notebook.output(0).last.locator(".smp-strip[data-state=run]")
    expect(strip).to_contain_text(re.compile(r"Training step \d+ of 36"))
    expect(strip).to_contain_text("s per step, predicted")
    step = strip.locator("b").first.inner_text()
    expect(strip.locator("b").first).not_to_have_text(step)  # updated in place
    notebook.page.evaluate(RESTART)
    notebook.run(1)
    again = notebook.output(1)
    expect(again.last.locator(".smp-strip[data-state=fits]")).to_contain_text(re.compile(r"Completed step \d+ of 36"))
    expect(again.get_by_role("img", name="Seconds per step").locator(".smp-series")).to_have_count(1)
    notebook.run(2)
    expect(notebook.output(2).last).to_contain_text("1 measured run; step time")
    assert refused == []
