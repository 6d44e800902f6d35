"""The view reads a script and a pasted cell, and starts the plan on screen after the options and the price, once."""

import re

from playwright.sync_api import Locator, expect

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


def test_the_tab_shows_the_request_its_price_and_the_line_that_starts_it(host, root):
    page = host(make_advice())
    panel = open_tab(page.view, "Start and watch")
    expect(panel).to_contain_text("per hour")
    expect(panel).to_contain_text("%smp_start --option role=arn")
    page.settle()  # until then the panel is dimmed
    assert violations_in_both_themes(page, root, PANEL) == []
