"""The page of the advisor: verdict, state of the kernel, second click, and a layout in which nothing moves."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.notebook.advice import PIPELINE, make_advice

from .test_view import NOTHING_CLIPPED, memory, violations_in_both_themes

POSITIONS = """
async view => {
  const moved = [];
  for (const slider of view.querySelectorAll('input[type=range]')) {
    const place = () => slider.closest('.smp-row').getBoundingClientRect();
    const {top, height} = place();
    for (let position = 0; position <= Number(slider.max); position++) {
      slider.value = String(position);
      slider.dispatchEvent(new Event('input', {bubbles: true}));
      await new Promise(requestAnimationFrame);
      const now = place();
      if (now.top !== top || now.height !== height) moved.push(`${slider.name} ${position}: ${now.top - top}`);
    }
  }
  return moved;
}
"""


def test_a_plan_that_does_not_fit_is_exported_by_a_second_click_and_carries_a_guard(host, root):
    page = host(make_advice())
    verdict = page.view.locator(".smp-verdict")
    expect(verdict).to_have_attribute("data-answer", "fits")
    page.view.get_by_label("Batch size").press("End")
    page.settle()
    expect(verdict).to_have_attribute("data-answer", "over")
    expect(page.view.locator(".smp-words")).to_have_text("Does not fit")
    page.view.get_by_role("button", name="Insert estimator cell").click()
    expect(page.view.locator(".smp-status")).to_contain_text("The plan does not fit")
    page.settle()
    assert page.inserted == []
    assert violations_in_both_themes(page, root, ".smp-verdict") == []
    page.view.get_by_role("button", name="Insert it anyway").click()
    page.settle()
    assert "START_ANYWAY = False" in page.inserted[-1]["sources"][-1]
    page.view.get_by_label("Batch size").press("ArrowLeft")
    expect(page.view.get_by_role("button", name="Insert estimator cell")).to_be_visible()


@pytest.mark.parametrize("application", ["jupyter", "vscode"])
def test_a_kernel_that_was_restarted_is_no_zombie_and_its_plan_is_offered(host, application):
    page = host(make_advice(), application=application, width=420)
    kernel, batch = page.view.locator(".smp-kernel"), page.view.get_by_label("Batch size")
    name = "Back to the plan before the restart"
    expect(page.view.get_by_role("button", name=name)).to_be_hidden()
    batch.press("ArrowLeft")
    page.settle()
    moved = batch.input_value()
    page.restart_kernel()
    if application == "vscode":  # it does not report the restart: the next request finds it out
        batch.press("ArrowLeft")
    expect(kernel).to_have_attribute("data-status", "gone")
    expect(kernel).to_contain_text("Disconnected")
    page.view.get_by_role("button", name="Insert estimator cell").click()
    expect(page.view.locator(".smp-status")).to_contain_text("Run its cell again")
    page.view.get_by_role("button", name="Run the cell again").click()
    if application == "jupyter":
        page.settle()
        assert page.runs == 1
    else:
        expect(kernel).to_contain_text("press Shift+Enter")
    page.show(make_advice())
    expect(page.view.locator(".smp-kernel")).to_have_attribute("data-status", "live")
    offer = page.view.get_by_role("button", name=name)
    if application == "vscode":  # its frame has no storage
        expect(offer).to_be_hidden()
    else:
        expect(offer).to_be_visible()
        assert page.view.evaluate(NOTHING_CLIPPED) == []
        offer.click()
        expect(page.view.get_by_label("Batch size")).to_have_value(moved)
        expect(offer).to_be_hidden()
    assert page.errors == []


@pytest.mark.parametrize("width", [1920, 720, 340])
def test_nothing_moves_and_nothing_is_cut_off(host, width):
    page = host(make_advice(PIPELINE), width=width, height=900)
    page.settle()
    verdict = page.view.locator(".smp-verdict").bounding_box()
    assert verdict["height"] < (205 if width > 400 else 280)
    assert page.view.evaluate(POSITIONS) == []
    page.settle()
    kernel = page.view.locator(".smp-kernel")
    with page.busy():
        page.view.get_by_label("Batch size").press("ArrowLeft")
        expect(kernel).to_have_text(re.compile(r"Kernel busy: \d queued"))
        assert page.view.locator(".smp-verdict").bounding_box()["height"] == verdict["height"]
    page.settle()
    expect(kernel).to_have_attribute("data-status", "live")
    assert page.view.locator(".smp-verdict").bounding_box()["height"] == verdict["height"]
    box = page.view.bounding_box()
    assert width - 40 <= box["x"] + box["width"] <= width
    for tab in page.view.get_by_role("tab").all():
        tab.click()
        assert page.view.evaluate(NOTHING_CLIPPED) == []


def test_settings_stay_where_they_are_whatever_the_charts_above_them_show(host):
    page = host(make_advice(PIPELINE), width=720, height=1600)
    page.settle()
    batch, stages = (page.view.get_by_role("slider", name=name) for name in ("Batch size", "Pipeline parallel degree"))
    before = batch.bounding_box()["y"]
    schedule = page.view.get_by_label("Pipeline schedule")
    expect(schedule).to_be_enabled()
    expect(page.view.get_by_text("Stage 0").first).to_be_visible()
    for control, key in ((stages, "Home"), (stages, "End"), (batch, "End")):
        control.press(key)
        page.settle()
        assert batch.bounding_box()["y"] == before, (control, key)
        assert schedule.is_enabled() == (stages.get_attribute("aria-valuetext") != "1")
    expect(page.view.locator(".smp-verdict")).to_have_attribute("data-answer", "over")
    page.view.get_by_role("button", name="Show the changes").press("Enter")
    offers = page.view.locator(".smp-fit .smp-repair")
    assert offers.first.bounding_box()["y"] < page.view.locator(".smp-settings").bounding_box()["y"]
    offers.first.click()
    page.settle()
    assert batch.bounding_box()["y"] == before


def test_what_decides_is_on_one_screen(host, recommended):
    """JupyterLab next to its file browser, in a window of 1440 x 900."""
    page = host(recommended.recommended, width=1072, height=800)
    page.settle()
    view = page.view
    rows = view.locator(".smp-controls > section").first.locator(".smp-row")
    parts = [view.locator(".smp-verdict"), view.locator(".smp-charts .smp-plot .smp-chart"), rows.last]
    parts.append(view.locator(".smp-ladder tbody").first)
    for part in parts:
        box = part.bounding_box()
        assert box["y"] + box["height"] <= 800
    left, right = rows.first.bounding_box(), view.locator(".smp-ladder").bounding_box()
    assert left["x"] + left["width"] <= right["x"]


@pytest.mark.parametrize("width", [532, 392])
def test_on_a_narrow_page_parts_are_stacked_and_names_are_complete(host, recommended, width):
    page = host(recommended.recommended, width=width, height=900)
    page.settle()
    parts = (".smp-verdict", ".smp-charts", ".smp-controls", ".smp-ladder")
    tops = [page.view.locator(part).bounding_box()["y"] for part in parts]
    assert tops == sorted(tops)
    plot = page.view.locator(".smp-charts .smp-plot").bounding_box()
    assert plot["y"] + plot["height"] < 720  # in a window of 900, below the application's bars and the cell
    fits = "fields => fields.every(field => field.scrollWidth <= field.clientWidth)"
    assert page.view.locator("input.smp-field-input:visible").evaluate_all(fits)
    inside = "(texts, width) => texts.every(text => text.getBoundingClientRect().right <= width)"
    assert page.view.locator(".smp-label, .smp-advised, .smp-rung-title").evaluate_all(inside, width)


def test_changed_settings_are_marked_counted_and_reset_one_by_one(host):
    page = host(make_advice())
    batch = page.view.get_by_role("slider", name="Batch size")
    before = memory(page.view)
    batch.press("ArrowLeft")
    assert memory(page.view) < before
    effect = r": memory −[\d.]+ GiB per GPU \([\d.]+ of [\d.]+ GiB\)"
    expect(page.view.locator(".smp-change")).to_have_text(
        re.compile(rf"^Batch size 20 → [\d,]+ \(global batch [\d,]+ → [\d,]+\){effect}")
    )
    assert batch.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    page.view.get_by_text("Rarely changed", exact=True).click()
    page.view.locator("select[name=loss]").select_option(index=1)
    page.settle()
    expect(page.view.locator(".smp-changed")).to_have_count(2)
    expect(page.view.get_by_text("Rarely changed (1 changed)")).to_be_visible()
    page.view.get_by_role("button", name="Reset to 20").click()
    expect(batch).to_have_attribute("aria-valuetext", "20")
    expect(batch).to_be_focused()
    expect(page.view.locator(".smp-changed")).to_have_count(1)
    page.view.get_by_role("button", name="Reset to recommended").click()
    expect(page.view.locator(".smp-changed")).to_have_count(0)
    assert memory(page.view) == before


def test_the_whole_path_works_without_a_mouse(host, recommended):
    """From the request to the inserted cell with Tab, arrows, Enter and space alone."""
    page = host(recommended.recommended, width=1072)
    keyboard, view = page.page.keyboard, page.view
    focused = "() => { const e = document.activeElement; return `${e.name ?? ''} ${e.textContent} ${e.ariaLabel}`; }"

    def tab_to(text: str, key: str = "Tab") -> None:
        for _ in range(120):
            keyboard.press(key)
            if text in page.page.evaluate(focused):
                return
        pytest.fail(f"no {text!r} on the way of {key}")

    def use(text: str, press: str = "Enter", key: str = "Tab") -> None:
        tab_to(text, key)
        keyboard.press(press)
        page.settle()

    verdict, reset = view.locator(".smp-verdict"), view.get_by_role("button", name="Reset to recommended")
    tab_to("workload-instance_count")
    count = view.locator("input[name='workload-instance_count']")
    keyboard.type("0")
    keyboard.press("Escape")
    expect(count).to_have_value("2")
    use("batch_size", "End")
    expect(verdict).to_have_attribute("data-answer", "over")
    expect(view.locator(".smp-headline .smp-note").first).to_contain_text("if it fitted")
    use("Pin", "Space")
    expect(view.locator(".smp-pin:focus")).to_have_text("Pinned")
    use("Batch size: ")  # the first change that makes it fit; its button disappears
    expect(view.locator("h2:focus")).to_have_text("Fits")
    expect(view.get_by_role("heading", name="Make it fit")).to_be_hidden()
    tab_to("tokens/s")
    expect(view.locator(".smp-headline:focus").get_by_text("95 %")).to_be_visible()
    use("Undo", "Enter", "Shift+Tab")
    expect(verdict).to_have_attribute("data-answer", "over")
    use("Reset to recommended")
    expect(reset).to_be_hidden()
    tab_to("Why")
    keyboard.press("ArrowRight")
    panel = view.get_by_role("tabpanel", name="Alternatives")
    expect(panel.locator(".smp-chart").first).to_be_visible()
    page.settle()
    tab_to("Arrow keys show")
    keyboard.press("Home")  # the point with the least free memory: its figures, and why it is not recommended
    expect(panel.locator(".smp-readout")).to_contain_text("GiB free. ")
    keyboard.press("Enter")
    page.settle()
    expect(view.locator(".smp-decisive")).to_contain_text("Your plan, ")
    use("Insert estimator cell", "Space", "Shift+Tab")
    use("Measure this")
    assert [cells["what"] for cells in page.inserted] == ["job", "probe"]
    tab_to("Alternatives")
    keyboard.press("End")
    expect(view.get_by_role("tabpanel", name="Assumptions and facts")).to_contain_text("ml.p4d.24xlarge")
    assert page.errors == []
