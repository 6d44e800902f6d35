"""The advisor in a notebook, from the first cell to the inserted ones."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .page import ADVISE, REFERENCE

DRAG_AND_CLICK = """
() => {
  const view = document.querySelector('.smp');
  const slider = view.querySelector('input[name=batch_size]');
  for (let position = 0; position <= Number(slider.max); position++) {
    slider.value = String(position);
    slider.dispatchEvent(new Event('input'));
  }
  for (let position = Number(slider.max); position >= 3; position--) {
    slider.value = String(position);
    slider.dispatchEvent(new Event('input'));
  }
  [...view.querySelectorAll('button')].find(button => button.textContent === 'Insert estimator cell').click();
  return slider.getAttribute('aria-valuetext');
}
"""


def memory(advisor) -> float:
    return float(advisor.locator(".smp-number").first.inner_text().split()[0])


def test_the_recommendation_is_there_with_what_argues_for_it(open_notebook, refused, screenshot):
    advised = open_notebook(REFERENCE, "'tail'")
    advised.advise()
    view = advised.advisor
    expect(view.locator(".smp-heading")).to_contain_text("ml.p4d.24xlarge")
    expect(view.locator(".smp-badge-mark").first).to_have_text("inferred")
    expect(view.locator(".smp-verdict")).to_contain_text("Fits with")
    expect(view.get_by_role("img", name=re.compile("GiB usable: "))).to_be_visible()
    first = view.locator(".smp-step").first
    first.locator("summary").click()
    expect(first.get_by_role("link")).to_have_attribute("href", re.compile("^https://"))
    assert view.locator(".smp-step").count() >= 6
    advised.page.mouse.move(0, 0)
    screenshot(advised, "recommendation")
    assert (advised.errors, refused) == ([], [])


def test_a_slider_moved_by_keyboard_shows_and_tells_what_that_does(advised):
    view = advised.advisor
    before = memory(view)
    slider = view.get_by_label("Batch size")
    value = slider.get_attribute("aria-valuetext")
    slider.focus()
    advised.page.keyboard.press("ArrowLeft")  # the recommended batch may be the largest
    expect(slider).not_to_have_attribute("aria-valuetext", value)
    assert memory(view) < before
    expect(view.locator(".smp-change")).to_have_text(
        re.compile(
            rf"^Batch size {value} → [\d,]+ \(global batch [\d,]+ → [\d,]+\):"
            r" memory −[\d.]+ GiB per GPU \([\d.]+ of [\d.]+ GiB\)"
        )
    )
    expect(view.locator(".smp-configuration .smp-title")).to_have_text("Your configuration")
    view.get_by_role("button", name="Reset to recommended").click()
    expect(slider).to_have_attribute("aria-valuetext", value)
    assert memory(view) == before


@pytest.mark.lab_only
def test_the_kernel_follows_the_slider(open_notebook):
    notebook = open_notebook(ADVISE, "advice.plan.batch_size")
    view = notebook.advise()
    slider = view.get_by_label("Batch size")
    slider.focus()
    for _ in range(3):
        notebook.page.keyboard.press("ArrowLeft")
    shown = slider.get_attribute("aria-valuetext")
    expect(view).to_have_attribute("aria-busy", "false")
    notebook.run(1)
    expect(notebook.output(1)).to_have_text(shown.replace(",", ""))


@pytest.mark.lab_only
def test_a_combination_that_cannot_be_says_why_and_loses_nothing(open_notebook, screenshot):
    advised = open_notebook(REFERENCE, "'tail'")
    advised.advise()
    view = advised.advisor
    before = memory(view)
    view.get_by_label("Sharding").select_option("full, over 8 GPUs")
    pipeline = view.get_by_label("Pipeline parallel degree")
    pipeline.focus()
    advised.page.keyboard.press("ArrowRight")
    alert = view.get_by_role("alert").filter(has_text="Sharded data parallel degree")
    expect(alert).to_be_visible()
    expect(view.locator(".smp-stale")).to_be_visible()
    assert memory(view) > 0
    expect(view.locator(".smp-step").first).to_be_visible()
    screenshot(advised, "refused")
    view.get_by_role("button", name="Insert estimator cell").click()
    expect(view.locator(".smp-status")).to_contain_text("Sharded data parallel degree")
    expect(advised.cells).to_have_count(2)
    pipeline.focus()
    advised.page.keyboard.press("ArrowLeft")
    expect(alert).to_have_count(0)
    view.get_by_role("button", name="Reset to recommended").click()
    assert memory(view) == before


def test_a_fast_drag_and_a_click_export_what_the_slider_shows(advised):
    value = advised.page.evaluate(DRAG_AND_CLICK)
    expect(advised.cells).to_have_count(4)
    assert f'"batch_size": {value.replace(",", "")},' in advised.source(2)
    expect(advised.advisor.get_by_label("Batch size")).to_have_attribute("aria-valuetext", value)


def test_cells_go_below_the_widgets_own_wherever_the_cursor_is(advised, screenshot):
    advised.code(1).click()
    advised.advisor.get_by_role("button", name="Insert estimator cell").click()
    expect(advised.cells).to_have_count(4)
    assert "%%writefile" in advised.source(1)
    assert "PyTorch(" in advised.source(2)
    assert advised.source(3) == "'tail'"
    expect(advised.advisor.locator(".smp-status")).to_have_text(
        "Inserted 2 cells below: the training script, then the estimator."
    )
    screenshot(advised, "inserted")
    advised.run(1)
    expect(advised.output(1)).to_contain_text("Writing")


@pytest.mark.lab_only
def test_the_code_can_be_read_before_it_is_inserted(advised):
    view = advised.advisor
    view.get_by_text("Code to insert").click()
    expect(view.locator(".smp-pre")).to_have_count(2)
    expect(view.locator(".smp-pre").last).to_contain_text("distribution")


@pytest.mark.lab_only
def test_two_views_stay_in_step(open_notebook):
    notebook = open_notebook(f"{ADVISE}", "advice")
    notebook.advise()
    notebook.run(1)
    first, second = notebook.page.locator(".smp").nth(0), notebook.page.locator(".smp").nth(1)
    expect(second).to_be_visible()
    slider = first.get_by_label("Batch size")
    slider.focus()
    notebook.page.keyboard.press("ArrowLeft")
    value = slider.get_attribute("aria-valuetext")
    expect(second.get_by_label("Batch size")).to_have_attribute("aria-valuetext", value)
    expect(second.locator(".smp-number").first).to_have_text(first.locator(".smp-number").first.inner_text())


@pytest.mark.lab_only
def test_a_pipeline_has_its_own_controls_and_one_bar_a_group_of_stages(open_notebook, screenshot):
    notebook = open_notebook(ADVISE)
    view = notebook.advise()
    view.get_by_label("Sharding").select_option("optimizer state")
    degree = view.get_by_label("Pipeline parallel degree")
    degree.focus()
    notebook.page.keyboard.press("Home")
    for _ in range(2):
        notebook.page.keyboard.press("ArrowRight")
    expect(degree).to_have_attribute("aria-valuetext", "4")
    expect(view.get_by_label("Active microbatches")).to_be_visible()
    expect(view.get_by_label("Pipeline schedule")).to_be_visible()
    assert view.locator(".smp-stage").first.inner_text() == "Stage 0"
    screenshot(notebook, "pipeline")
    degree.focus()
    notebook.page.keyboard.press("Home")
    expect(view.get_by_label("Active microbatches")).to_have_count(0)


@pytest.mark.lab_only
def test_bad_input_is_one_sentence_and_what_was_there_stays(open_notebook):
    notebook = open_notebook(ADVISE, "%smp_advise 10B --instance ml.p4d.24xlarg --count 16")
    notebook.advise()
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("UsageError: ")
    expect(notebook.output(1)).not_to_contain_text("Traceback")
    expect(notebook.advisor.locator(".smp-verdict")).to_be_visible()
