"""The widget reads a training script, and a cell checks itself."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from .page import ADVISE

SCRIPT = "import smdistributed.modelparallel.torch as smp\n\nrank = smp.rank()\n"


def test_the_panel_lists_what_is_wrong_with_a_script(advised, server, screenshot):
    (server.work / "train.py").write_text(SCRIPT)
    panel = advised.advisor.locator("details", has_text="Check your training script")
    panel.locator("summary").first.click()
    path = panel.get_by_label("Script")
    path.fill("train.py")
    path.press("Enter")
    expect(panel.get_by_role("status")).to_contain_text("1 error")
    finding = panel.locator(".smp-findings details").first
    expect(finding).to_contain_text("train.py:3")
    finding.locator("summary").click()
    expect(finding.get_by_role("link")).to_have_attribute("href", re.compile("^https://docs.aws.amazon.com/"))
    screenshot(advised, "script-panel")
    path.fill("nowhere.py")
    panel.get_by_role("button", name="Check script").click()
    expect(panel.get_by_role("status")).to_contain_text("nowhere.py")
    expect(panel.locator(".smp-findings")).to_be_empty()
    assert advised.cells.count() == 2  # Enter in the field runs no cell and adds none


def test_a_cell_is_checked_in_place(open_notebook, screenshot):
    notebook = open_notebook(ADVISE.splitlines()[0], f"%%smp_check\n{SCRIPT}")
    notebook.run(0)
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("SMP101")
    screenshot(notebook, "cell-checked")
