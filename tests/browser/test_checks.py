"""The view reads a script and a pasted cell, and starts the plan on screen after the options and the price, once."""

import re

from playwright.sync_api import Locator, expect

from smp_advisor.runs.sources import LogFile
from smp_advisor.runs.watching import Run
from smp_advisor.session import Advice
from tests.notebook.advice import make_advice

from .test_view import PANEL, open_tab, violations_in_both_themes

CELL = """\
from sagemaker.pytorch import PyTorch

estimator = PyTorch(
    entry_point="train.py",
    role="role",
    instance_type="ml.p4d.24xlarge",
    instance_count=16,
    framework_version="1.13.1",
    py_version="py39",
    distribution={
        "smdistributed": {
            "modelparallel": {
                "enabled": True,
                "parameters": {"tensor_paralel_degree": 8, "ddp": True, "fp16": True},  # <b>mine</b>
            }
        },
    },
    hyperparameters={"batch_size": 8, "activation_checkpointing": "each"},
    debugger_hook_config=False,
    disable_profiler=True,
)
"""
SCRIPT = """import smdistributed.modelparallel.torch as smp

import argparse
args = argparse.ArgumentParser().parse_args()
rank = smp.rank()
"""


def opened(view: Locator, title: str) -> Locator:
    """A panel of the tab for scripts."""
    panel = open_tab(view, "Your script").locator("details", has_text=title).last
    panel.locator("summary").first.press("Enter")  # wherever it is: answers to the open tab move it
    return panel


def test_a_pasted_cell_is_read_corrected_and_compared(host):
    page = host(make_advice())
    panel = opened(page.view, "Check an existing cell")
    field = panel.get_by_label("Cell, dictionary, recipe or request")
    field.fill(CELL)
    field.press("Control+Enter")
    expect(panel.locator("p[role=status]").first).to_contain_text("2 errors")
    expect(panel.locator(".smp-findings")).to_contain_text("EST501")
    expect(panel.locator(".smp-findings")).to_contain_text("mpi, which starts SMP v1, is missing")
    expect(panel.locator(".smp-changes")).to_contain_text('"tensor_parallel_degree": 8')
    expect(panel.get_by_role("row", name=re.compile("^Tensor parallel degree 8 "))).to_be_visible()
    assert panel.get_by_text("mine", exact=True).count() == 0  # what was pasted is text
    panel.get_by_role("button", name="Insert corrected cell").click()
    page.settle()
    assert '"tensor_parallel_degree": 8' in page.inserted[0]["sources"][0]


def test_findings_of_a_script_are_read_and_copied(host, tmp_path):
    page, path = host(make_advice()), tmp_path / "train.py"
    path.write_text(SCRIPT)
    panel = opened(page.view, "Check your training script")
    field = panel.get_by_label("Script", exact=True)
    field.fill(str(path))
    field.press("Enter")
    expect(panel.locator("p[role=status]")).to_contain_text("2 errors")
    expect(panel.locator(".smp-title").first).to_contain_text("Certain to fail, hang or train incorrectly 2")
    finding = panel.locator(".smp-rows > details", has_text="SMP133")
    expect(finding.get_by_role("link")).to_have_attribute("href", re.compile("^https://"))
    finding.get_by_role("button", name=re.compile("^Copy place")).press("Enter")
    expect(panel.locator("p[role=status]")).to_contain_text("Copied the place")
    assert page.page.evaluate("navigator.clipboard.readText()").startswith(f"{path}:4:")
    field.fill("nowhere.py")
    panel.get_by_role("button", name="Check script").click()
    expect(panel.locator("p[role=status]")).to_contain_text("nowhere.py")
    expect(panel.locator(".smp-findings")).to_be_empty()


def test_the_button_is_off_until_the_options_and_the_price_are_there(host, root, monkeypatch, tmp_path):
    slow, started, advice = "step 7 loss nan tokens_per_second 9.0 seconds_per_step 99.5\n", [], make_advice()
    (tmp_path / "job.log").write_text(9 * slow)
    monkeypatch.setattr(
        "smp_advisor.runs.start.start_job",
        lambda *of, **_: started.append(of) or Run(LogFile(tmp_path / "job.log"), Advice(advice)),
    )
    page = host(advice)
    panel = open_tab(page.view, "Start and watch")
    show, job = (panel.get_by_role("button", name=name) for name in ("Show request and price", "Start the job"))
    expect(job).to_have_count(0)
    panel.get_by_role("textbox").fill("role=arn:aws:iam::111122223333:role/Training")
    show.click()
    expect(panel).to_contain_text("per hour")
    assert started == []
    job.click()
    expect(panel).to_contain_text("99.5 s per step")
    expect(panel).to_contain_text("%smp_watch")
    panel.get_by_role("button", name="Refresh").click()
    page.settle()  # until then the panel is dimmed
    expect(panel).to_contain_text("99.5 s per step")
    assert len(started) == 1
    expect(panel.get_by_role("alert").first).to_contain_text("loss is nan")
    assert violations_in_both_themes(page, root, PANEL) == []
