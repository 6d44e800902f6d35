"""What the lab extension adds to the application, and the cells that the advisor inserted and keeps as its own."""

import re

import pytest
from playwright.sync_api import expect

from .server import PREFERENCES


@pytest.mark.oldest("lab")
def test_the_toolbar_inserts_and_runs_an_advisor_with_the_users_settings(open_notebook):
    notebook = open_notebook("'first'", "'second'")
    notebook.run(0)
    button = notebook.page.locator(
        ".jp-NotebookPanel-toolbar [data-jp-item-name='smp-advisor'] :is(button, jp-button)"
    ).first
    button.click()
    expect(notebook.cells).to_have_count(3)
    expect(notebook.code(1)).to_contain_text("%smp_advise 10B --instance ml.p4de.24xlarge --count 2")
    expect(notebook.advisor.locator(".smp-verdict")).to_be_visible()
    notebook.advisor.get_by_role("button", name="Insert estimator cell").click()
    expect(notebook.cells).to_have_count(5)
    assert PREFERENCES["region"] in notebook.source(3)


@pytest.mark.lab_only
def test_the_palette_lists_the_advisor_and_the_launcher_opens_a_notebook_with_it(open_notebook):
    notebook = open_notebook("'first'")
    notebook.run(0)
    notebook.page.keyboard.press("Control+Shift+c")
    search = notebook.page.locator("#modal-command-palette input, .jp-ModalCommandPalette input").first
    search.fill("SMP Advisor")
    expect(notebook.page.locator(".lm-CommandPalette-item", has_text="Insert the SMP Advisor")).to_be_visible()
    notebook.page.keyboard.press("Escape")
    notebook.page.keyboard.press("Control+Shift+l")
    card = notebook.page.locator(".jp-LauncherCard:visible", has_text="SMP Advisor")
    expect(card).to_be_visible()
    card.click()
    expect(notebook.page.locator(".smp-verdict")).to_be_visible()


INSERT = "Insert estimator cell"
SAVED = "() => window.jupyterapp.shell.currentWidget.context.model.dirty === false"
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


@pytest.mark.lab_only
@pytest.mark.oldest("lab")
def test_cells_are_updated_until_they_are_edited(advised):
    view, status = advised.advisor, advised.advisor.locator(".smp-status-line .smp-status")
    button = view.locator(".smp-primary")
    stale = advised.page.locator(".smp-advisor-stale")
    button.click()
    expect(advised.cells).to_have_count(4)
    expect(advised.code(1)).to_be_hidden()  # the training script has hundreds of lines
    advised.page.wait_for_function(FIRST_IN_SIGHT)
    expect(stale).to_have_count(0)
    slider = view.get_by_label("Batch size")
    for _ in range(2):
        slider.press("ArrowLeft")
    expect(view).to_have_attribute("aria-busy", "false")  # the plan of the second move
    expect(stale).to_have_count(2)
    expect(button).to_have_text("Update 2 cells")
    stale.last.get_by_role("button", name="Update").click()
    expect(status).to_have_text("Updated the cells inserted before.")
    expect(stale).to_have_count(0)
    batch = slider.get_attribute("data-value").replace(",", "")
    assert f'"batch_size": {batch},' in advised.source(2)
    button.click()
    expect(status).to_contain_text("have this code already")
    expect(advised.cells).to_have_count(4)
    mine = advised.source(2).replace(f'"batch_size": {batch},', '"batch_size": 7,')
    advised.page.evaluate(SET, [2, mine])
    button.click()
    expect(status).to_have_text("You edited the cells inserted before.")
    assert advised.source(2) == mine
    view.get_by_role("button", name="Insert new cells").click()
    expect(advised.cells).to_have_count(6)
    assert advised.source(4) == mine
    advised.page.evaluate(SET, [2, mine])
    button.click()
    view.get_by_role("button", name="Replace my edits").click()
    expect(status).to_have_text("Updated the cells inserted before.")
    assert f'"batch_size": {batch},' in advised.source(2)


@pytest.mark.lab_only
def test_the_shortcut_to_save_works_on_a_slider_and_an_output_in_its_own_tab_inserts_below_its_cell(advised):
    advised.page.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty = true")
    advised.advisor.get_by_label("Batch size").press("Control+s")
    advised.page.wait_for_function(SAVED)
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


@pytest.mark.lab_only
def test_an_edit_that_is_not_applied_is_never_exported(advised):
    """Enter applies it: inside a notebook of JupyterLab, a field gets no event of a change."""
    view = advised.advisor
    heading, count = view.locator(".smp-heading"), view.get_by_label("Count", exact=True)
    before = heading.inner_text()
    nodes = int(count.input_value())
    count.fill(str(nodes * 2))
    expect(view.locator(".smp-words")).to_contain_text("(before)")
    view.locator(".smp-primary").evaluate("button => button.click()")
    expect(advised.cells).to_have_count(2)
    count.press("Enter")
    expect(heading).to_have_text(before.replace(f"{nodes} ×", f"{nodes * 2} ×"))
    view.locator(".smp-primary").click()
    expect(advised.cells).to_have_count(4)
    assert f"instance_count={nodes * 2}" in advised.source(2).replace(" ", "")


@pytest.mark.lab_only
def test_the_strip_stays_on_top_while_the_notebook_scrolls(advised):
    """JupyterLab's outputs clip what they contain, and a strip in them would scroll away."""
    page, strip = advised.page, advised.advisor.locator(".smp-verdict").element_handle()
    slider = advised.advisor.get_by_role("slider", name="Batch size").element_handle()
    for width, height in ((1440, 900), (760, 700), (960, 400)):
        page.set_viewport_size({"width": width, "height": height})
        # JupyterLab may still lay out the cells for the new size, and scroll: both are looked at in one frame.
        page.wait_for_function(
            """([slider, strip]) => {
                slider.scrollIntoView({ block: 'end' });
                const [control, top] = [slider, strip].map((part) => part.getBoundingClientRect());
                return control.top >= 0 && control.bottom <= innerHeight + 1 && top.bottom <= innerHeight
                    && strip.contains(document.elementFromPoint(top.left + 20, top.top + 20));
            }""",
            arg=[slider, strip],
        )
