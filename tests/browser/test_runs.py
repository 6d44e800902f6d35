"""A run as a person sees it: watched live, its kernel restarted in the middle, and what it taught."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.lab_only, pytest.mark.slow]

START = """import smp_advisor as smpa
advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="1B")
advice.save("advice.json")
def train(first, last):
    with open("train.log", "a") as log:
        for step in range(first, last):
            log.write(f"step {step} loss {9 - step / 99:.2f} seconds_per_step {1.2 * advice.estimate.step_seconds}\\n")
train(1, 6)
smpa.watch("train.log")"""
GO_ON = "train(6, 40)"
RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
AGAIN = """%load_ext smp_advisor
run = %smp_watch train.log
"""
LEARN = """second = run.calibrated()
print(second.learned.headline, second.plan)"""


def test_a_run_is_watched_across_kernels_and_teaches(open_notebook, refused):
    notebook = open_notebook(START, GO_ON, AGAIN, LEARN)
    notebook.run(0)
    strip = notebook.output(0).last.locator(".smp-strip[data-state=run]")
    expect(strip).to_contain_text(re.compile(r"Training step 5 of \d+"))
    expect(strip).to_contain_text("s per step, predicted")
    notebook.run(1)
    expect(strip.locator("b").first).to_have_text("39")  # updated in place
    notebook.page.evaluate(RESTART)
    notebook.run(2)
    again = notebook.output(2)
    expect(again.last.locator(".smp-strip")).to_contain_text(re.compile(r"step 39 of \d+"))
    expect(again.get_by_role("img", name="Seconds per step").locator(".smp-series")).to_have_count(1)
    notebook.run(3)
    expect(notebook.output(3).last).to_contain_text("1 measured run; step time")
    assert refused == []
