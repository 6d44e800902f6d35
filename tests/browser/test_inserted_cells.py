"""Cells that the advisor inserted stay its own: updated, marked as stale, and not overwritten once they are edited."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

INSERT = "Insert estimator cell"
SET = """
([index, source]) => {
  const { content } = window.jupyterapp.shell.currentWidget;
  content.widgets[index].model.sharedModel.setSource(source);
}
"""
FIRST_IN_SIGHT = """
() => {
  const { content } = window.jupyterapp.shell.currentWidget;
  const top = content.widgets[1].node.getBoundingClientRect().top;
  const { top: first, bottom: last } = content.node.getBoundingClientRect();
  return content.activeCellIndex === 1 && first - 1 <= top && top < last;
}
"""


@pytest.mark.oldest("lab")
def test_cells_are_updated_until_they_are_edited(advised, screenshot):
    view, status = advised.advisor, advised.advisor.locator(".smp-status-line .smp-status")
    button = view.locator(".smp-actions button")
    stale = advised.page.locator(".smp-advisor-stale")
    button.click()
    expect(advised.cells).to_have_count(4)
    expect(advised.code(1)).to_be_hidden()  # the training script has hundreds of lines
    advised.page.wait_for_function(FIRST_IN_SIGHT)
    expect(stale).to_have_count(0)
    slider = view.get_by_label("Batch size")
    for _ in range(2):
        slider.press("ArrowLeft")
    expect(stale).to_have_count(2)
    expect(button).to_have_text("Update 2 cells")
    screenshot(advised, "stale")
    stale.last.get_by_role("button", name="Update").click()
    expect(status).to_have_text("Updated the cells inserted before.")
    expect(stale).to_have_count(0)
    batch = slider.get_attribute("aria-valuetext").replace(",", "")
    assert f'"batch_size": {batch},' in advised.source(2)
    button.click()
    expect(status).to_contain_text("have this code already")
    expect(advised.cells).to_have_count(4)
    mine = advised.source(2).replace(f'"batch_size": {batch},', '"batch_size": 7,')
    advised.page.evaluate(SET, [2, mine])
    button.click()
    expect(status).to_have_text("You edited the cells inserted before.")
    assert advised.source(2) == mine
    screenshot(advised, "edited")
    view.get_by_role("button", name="Insert new cells").click()
    expect(advised.cells).to_have_count(6)
    assert advised.source(4) == mine
    advised.page.evaluate(SET, [2, mine])
    button.click()
    view.get_by_role("button", name="Replace my edits").click()
    expect(status).to_have_text("Updated the cells inserted before.")
    assert f'"batch_size": {batch},' in advised.source(2)


@pytest.mark.lab_only
def test_an_output_in_its_own_tab_inserts_below_its_cell(advised):
    advised.advisor.get_by_role("button", name=INSERT).click()
    expect(advised.cells).to_have_count(4)
    advised.page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 0")
    advised.page.evaluate("window.jupyterapp.commands.execute('notebook:create-output-view')")
    output = advised.page.locator(".jp-LinkedOutputView .smp")
    output.get_by_label("Batch size").press("ArrowLeft")
    expect(advised.page.locator(".smp-advisor-stale").first).to_be_attached()
    output.get_by_role("button", name="Update 2 cells").click()
    expect(output.locator(".smp-status-line .smp-status")).to_have_text(re.compile("^Updated"))
    expect(advised.page.locator(".smp-advisor-stale")).to_have_count(0)
    expect(advised.cells).to_have_count(4)


SAVED = "() => window.jupyterapp.shell.currentWidget.context.model.dirty === false"


def test_an_edit_that_is_not_applied_is_never_exported(advised):
    """Enter applies it: inside a notebook of JupyterLab, a field gets no event of a change."""
    view = advised.advisor
    heading, count = view.locator(".smp-heading"), view.get_by_label("Count", exact=True)
    before = heading.inner_text()
    nodes = int(count.input_value())
    count.fill(str(nodes * 2))
    expect(view.locator(".smp-words")).to_contain_text("plan of the fields before")
    view.locator(".smp-actions button").evaluate("button => button.click()")
    expect(advised.cells).to_have_count(2)
    count.press("Enter")
    expect(heading).to_have_text(before.replace(f"{nodes} ×", f"{nodes * 2} ×"))
    view.locator(".smp-actions button").click()
    expect(advised.cells).to_have_count(4)
    assert f"instance_count={nodes * 2}" in advised.source(2).replace(" ", "")


@pytest.mark.lab_only
def test_the_shortcut_to_save_works_on_a_slider(advised):
    advised.advisor.get_by_label("Batch size").press("ArrowLeft")
    advised.page.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty = true")
    advised.advisor.get_by_label("Batch size").press("Control+s")
    advised.page.wait_for_function(SAVED)
