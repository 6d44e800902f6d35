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
    group = panel.locator(".smp-group")
    expect(group.locator("summary").first).to_have_text("Fails, hangs or trains incorrectly (1)")
    finding = group.locator("details").first
    expect(finding).to_contain_text("train.py:3")
    finding.locator("summary").first.click()
    expect(finding.get_by_role("link")).to_have_attribute("href", re.compile("^https://docs.aws.amazon.com/"))
    screenshot(advised, "script-panel")
    path.fill("nowhere.py")
    panel.get_by_role("button", name="Check script").click()
    expect(panel.get_by_role("status")).to_contain_text("nowhere.py")
    expect(panel.locator(".smp-findings")).to_be_empty()
    assert advised.cells.count() == 2  # Enter in the field runs no cell and adds none


def test_fixes_are_looked_at_copied_and_written(advised, server, screenshot):
    broken = SCRIPT.replace("rank =", "import argparse\nargs = argparse.ArgumentParser().parse_args()\nrank =")
    (server.work / "broken.py").write_text(broken)
    panel = advised.advisor.locator("details", has_text="Check your training script")
    panel.locator("summary").first.click()
    path = panel.get_by_label("Script")
    path.fill("broken.py")
    path.press("Enter")
    expect(panel.locator("p[role=status]")).to_contain_text("2 errors")
    finding = panel.locator(".smp-group > details", has_text="SMP133")
    finding.locator("summary").first.press("Enter")
    finding.get_by_role("button", name="Copy the place of broken.py:4").press("Enter")
    expect(finding.get_by_role("status").first).to_have_text("Copied the place.")
    assert advised.page.evaluate("navigator.clipboard.readText()") == "broken.py:4"
    fix = finding.locator(".smp-fix")
    fix.locator("summary").press("Enter")
    expect(fix).to_contain_text("parse_known_args()[0]")
    fix.get_by_role("button", name="Copy the diff").click()
    assert "+args = " in advised.page.evaluate("navigator.clipboard.readText()")
    screenshot(advised, "script-panel-fix")
    assert (server.work / "broken.py").read_text() == broken
    fix.get_by_role("button", name="Change the file").press("Enter")
    expect(panel.locator("p[role=status]")).to_contain_text("Wrote broken.py; the previous file is broken.py.bak.")
    expect(panel.locator("p[role=status]")).to_be_focused()
    assert (server.work / "broken.py.bak").read_text() == broken
    assert "parse_known_args()[0]" in (server.work / "broken.py").read_text()
    expect(panel.locator(".smp-group > details")).to_have_count(1)
    assert advised.cells.count() == 2  # the keys reached the panel alone


def test_a_finding_of_a_cell_is_copied_from_its_output(open_alone):
    notebook = open_alone(ADVISE.splitlines()[0], f"%%smp_check\n{SCRIPT}")
    notebook.run(0)
    notebook.run(1)
    copy = notebook.output(1).get_by_role("button", name="Copy place of <cell>:4:8")
    copy.focus()
    notebook.page.keyboard.press("Enter")
    expect(notebook.output(1).get_by_role("status")).to_contain_text("Copied the place of <cell>:4:8.")
    assert notebook.page.evaluate("navigator.clipboard.readText()") == "<cell>:4:8"
    assert notebook.cells.count() == 2
    # Without a clipboard the text is there to be taken by hand.
    notebook.page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false; }"
    )
    notebook.output(1).get_by_role("button", name="Copy advice").click()
    expect(notebook.output(1).get_by_role("status")).to_contain_text("The text is selected")
    assert "smp.init()" in notebook.page.evaluate("String(getSelection())")


def test_a_cell_is_checked_in_place(open_notebook, screenshot):
    notebook = open_notebook(ADVISE.splitlines()[0], f"%%smp_check\n{SCRIPT}")
    notebook.run(0)
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("SMP101")
    screenshot(notebook, "cell-checked")
