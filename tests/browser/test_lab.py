"""What the lab extension adds to the application itself."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .server import PREFERENCES


def test_the_toolbar_inserts_and_runs_an_advisor(open_notebook):
    notebook = open_notebook("'first'", "'second'")
    notebook.run(0)
    button = notebook.page.locator(
        ".jp-NotebookPanel-toolbar [data-jp-item-name='smp-advisor'] :is(button, jp-button)"
    ).first
    button.click()
    expect(notebook.cells).to_have_count(3)
    expect(notebook.code(1)).to_contain_text("%smp_advise 10B")
    expect(notebook.advisor.locator(".smp-verdict")).to_be_visible()


@pytest.mark.lab_only
def test_the_palette_lists_the_advisor(open_notebook):
    notebook = open_notebook("'first'")
    notebook.run(0)
    notebook.page.keyboard.press("Control+Shift+c")
    search = notebook.page.locator("#modal-command-palette input, .jp-ModalCommandPalette input").first
    search.fill("SMP Advisor")
    expect(notebook.page.locator(".lm-CommandPalette-item", has_text="Insert the SMP Advisor")).to_be_visible()
    notebook.page.keyboard.press("Escape")


@pytest.mark.oldest("lab")
def test_the_side_bar_recommends_with_the_users_settings(open_notebook, server, screenshot):
    notebook = open_notebook("'first'")
    notebook.run(0)
    tab = notebook.page.locator(".lm-TabBar-tab[title='SMP Advisor']")
    if server.app == "lab":
        tab.click()
    else:
        notebook.page.get_by_role("menuitem", name="View", exact=True).click()
        notebook.page.locator(".lm-Menu-item", has_text="Right Sidebar").first.hover()
        notebook.page.locator(".lm-Menu-item", has_text="SMP Advisor").first.click()
    panel = notebook.page.locator(".smp-advisor-panel")
    expect(panel.get_by_label("Instance type")).to_have_value("ml.p4de.24xlarge")
    panel.get_by_label("Model").fill("1.5B")
    recommend = panel.get_by_role("button", name="Recommend in the notebook")
    recommend.click()
    expect(notebook.code(1)).to_contain_text("%smp_advise 1.5B --instance ml.p4de.24xlarge --count 2")
    expect(notebook.code(1)).to_contain_text("--library smp-v1")
    expect(notebook.advisor).to_contain_text("2 × ml.p4de.24xlarge")
    panel.get_by_label("Model").fill("2B")
    recommend.click()
    expect(panel.get_by_role("status")).to_have_text("Updated the cell inserted before, and ran it.")
    expect(notebook.code(1)).to_contain_text("%smp_advise 2B")
    expect(notebook.cells).to_have_count(2)
    notebook.advisor.get_by_role("button", name="Insert estimator cell").click()
    expect(notebook.cells).to_have_count(4)
    assert PREFERENCES["region"] in notebook.source(3)
    screenshot(notebook, "side-bar")
    if server.app == "lab":
        tab.click()
        expect(panel).to_be_hidden()


@pytest.mark.lab_only
def test_the_launcher_opens_a_notebook_with_the_advisor(open_notebook, screenshot):
    notebook = open_notebook("'first'")
    notebook.run(0)
    notebook.page.keyboard.press("Control+Shift+l")
    card = notebook.page.locator(".jp-LauncherCard:visible", has_text="SMP Advisor")
    expect(card).to_be_visible()
    screenshot(notebook, "launcher")
    card.click()
    expect(notebook.page.locator(".smp-verdict")).to_be_visible()
