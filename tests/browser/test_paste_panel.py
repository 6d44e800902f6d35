"""The widget reads a cell that someone pasted."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

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


def test_the_panel_reads_corrects_and_compares_a_pasted_cell(advised, screenshot):
    panel = advised.advisor.locator("details", has_text="Check an existing cell").last
    panel.locator("summary").first.click()
    field = panel.get_by_label("Cell, dictionary, recipe or request")
    field.fill(CELL)
    field.press("Control+Enter")
    expect(panel.get_by_role("status").first).to_contain_text("2 errors")
    expect(panel.locator(".smp-findings")).to_contain_text("EST501")
    expect(panel.locator(".smp-findings")).to_contain_text("mpi, which starts SMP v1, is missing")
    expect(panel.locator(".smp-pre", has_text="+++")).to_contain_text(
        '+                "parameters": {"tensor_parallel_degree": 8'
    )
    expect(panel.get_by_role("row", name=re.compile("^Tensor parallel degree 8 "))).to_be_visible()
    assert panel.locator("b").count() == 0  # what was pasted is text
    panel.scroll_into_view_if_needed()
    screenshot(advised, "paste-panel")
    panel.locator("summary", has_text="Your plan compared with the plan on screen").scroll_into_view_if_needed()
    screenshot(advised, "paste-comparison")
    before = advised.cells.count()
    panel.get_by_role("button", name="Insert corrected cell").click()
    expect(advised.cells).to_have_count(before + 1)
    assert '"tensor_parallel_degree": 8' in advised.source(1)


@pytest.mark.lab_only
def test_what_is_no_configuration_is_said_in_a_sentence(advised):
    panel = advised.advisor.locator("details", has_text="Check an existing cell").last
    panel.locator("summary").first.click()
    field = panel.get_by_label("Cell, dictionary, recipe or request")
    for junk, said in (
        ("", "nothing to check"),
        ("x = 1", "does not configure a"),
        ("def (", "must parse"),
    ):
        field.fill(junk)
        panel.get_by_role("button", name="Check the cell").click()
        expect(panel.get_by_role("status").first).to_contain_text(said)
        expect(panel.locator(".smp-findings").first).to_be_empty()
    assert not [text for text in advised.errors if "smp" in text.lower()]
