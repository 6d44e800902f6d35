"""The page of the advisor: verdict, state of the kernel, second click, and a layout in which nothing moves."""

import re

import pytest
from playwright.sync_api import expect

import smp_advisor as smpa
from tests.notebook.advice import PIPELINE, make_advice

from .test_view import NOTHING_CLIPPED, memory, open_details, violations_in_both_themes

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


def test_a_plan_that_does_not_fit_is_exported_from_the_menu_and_carries_a_guard(host, root):
    page = host(make_advice())
    verdict = page.view.locator(".smp-verdict")
    expect(verdict).to_have_attribute("data-answer", "fits")
    page.view.get_by_label("Batch size").press("End")
    page.settle()
    expect(verdict).to_have_attribute("data-answer", "over")
    expect(page.view.locator(".smp-words")).to_have_text("Does not fit")
    expect(page.view.get_by_role("button", name="Insert estimator cell")).to_be_hidden()
    assert violations_in_both_themes(page, root, ".smp-verdict") == []
    page.view.locator("summary", has_text="▾").press("Enter")
    page.view.get_by_role("button", name="Insert it anyway").click()
    page.settle()
    assert "START_ANYWAY = False" in page.inserted[-1]["sources"][-1]
    page.view.get_by_role("button", name="Make it fit").click()
    offers = page.view.locator(".smp-fit .smp-repair")
    expect(offers.first).to_be_focused()
    offers.first.press("Enter")
    page.settle()
    expect(page.view.locator(".smp-words")).to_have_text("Fits")
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
    insert = page.view.get_by_role("button", name="Insert estimator cell")
    expect(insert).to_be_disabled()
    insert.evaluate("button => button.click()")
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
    assert verdict["height"] == 44
    assert page.view.evaluate(POSITIONS) == []
    page.settle()
    kernel, slider = page.view.locator(".smp-kernel"), page.view.get_by_label("Batch size")
    slider.focus()
    place = slider.bounding_box()
    with page.busy():
        slider.press("ArrowLeft")
        expect(kernel).to_have_text(re.compile(r"Kernel busy: \d queued"))
        assert page.view.locator(".smp-verdict").bounding_box()["height"] == verdict["height"]
        assert slider.bounding_box() == place
    page.settle()
    expect(kernel).to_have_attribute("data-status", "live")
    assert page.view.locator(".smp-verdict").bounding_box()["height"] == verdict["height"]
    box = page.view.bounding_box()
    assert width - 40 <= box["x"] + box["width"] <= width
    open_details(page.view)
    for tab in page.view.get_by_role("tab").all():
        tab.click()
        assert page.view.evaluate(NOTHING_CLIPPED) == []


INSIDE = """
async view => {
  await Promise.all(view.getAnimations({subtree: true}).map(glide => glide.finished));
  return [...view.querySelectorAll('.smp-stairs li > span')].every(words =>
    words.offsetWidth > 0 && words.offsetLeft + words.offsetWidth <= words.parentElement.clientWidth + 1);
}
"""


def test_the_words_of_the_stairs_are_on_the_page_where_the_first_plan_fits(host):
    page = host(smpa.advise("1.3B", "ml.p4d.24xlarge", instance_count=2, library="fsdp"))
    page.settle()
    assert page.view.evaluate(INSIDE)


BASELINE = """
view => {
  const before = view.querySelector('.smp-t-before');
  return [before.hidden, view.querySelector('.smp-key').textContent];
}
"""


def test_a_gesture_compares_with_its_start_until_the_next_one_and_its_sentence_with_the_recommendation(host):
    page = host(make_advice())
    page.settle()
    slider, start = page.view.get_by_label("Batch size"), memory(page.view)
    for _ in range(3):
        slider.press("ArrowLeft")
    page.settle()  # the answers of the kernel replace nothing
    hidden, key = page.view.evaluate(BASELINE)
    assert not hidden
    assert f"dashed: before, {start:.1f}" in key
    last = memory(page.view)
    batch = page.advisor.plan.batch_size
    expect(page.view.locator(".smp-change")).to_contain_text(
        f"Batch size 20 → {batch}: −{start - last:.1f} GiB per GPU"
    )
    expect(page.view.locator(".smp-python code")).to_have_text(f"advice.move(batch_size={batch})")
    expect(page.view.locator(".smp-sentence > .smp-hidden")).to_contain_text(f"Batch size 20 → {batch}")
    page.page.wait_for_function("start => performance.now() - start > 900", arg=page.page.evaluate("performance.now()"))
    slider.press("ArrowRight")
    page.settle()
    assert f"dashed: before, {last:.1f}" in page.view.evaluate(BASELINE)[1]


def test_the_edge_of_the_tank_is_a_handle_of_the_batch(host):
    page = host(make_advice())
    page.settle()
    grip, tank = (page.view.locator(part).bounding_box() for part in (".smp-grip", ".smp-tank"))
    mouse, middle = page.page.mouse, grip["y"] + grip["height"] / 2
    mouse.move(grip["x"] + grip["width"] / 2, middle)
    mouse.down()
    mouse.move(tank["x"] + 0.98 * tank["width"], middle, steps=4)
    expect(page.view.locator(".smp-verdict")).to_have_attribute("data-answer", "over")
    mouse.up()
    page.settle()
    assert page.advisor.plan.batch_size > 20
    page.advisor.undo()  # one gesture is one step
    expect(page.view.get_by_label("Batch size")).to_have_attribute("data-value", "20")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (760, 700), (392, 700), (960, 400)])
def test_slider_and_verdict_are_on_one_screen_at_every_width(host, recommended, width, height):
    page = host(recommended.recommended, width=width, height=height)
    page.settle()
    slider, strip = page.view.get_by_role("slider", name="Batch size"), page.view.locator(".smp-verdict")
    slider.evaluate("slider => slider.scrollIntoView({block: 'end'})")
    expect(slider).to_be_in_viewport()
    box = strip.bounding_box()
    assert (box["height"], box["y"] >= 0) == (44, True)
    assert page.view.evaluate(NOTHING_CLIPPED) == []
    fits = "fields => fields.every(field => field.scrollWidth <= field.clientWidth)"
    assert page.view.locator("input.smp-field-input:visible").evaluate_all(fits)


def test_changed_settings_are_marked_counted_and_reset_one_by_one(host):
    page = host(make_advice())
    page.settle()
    batch = page.view.get_by_role("slider", name="Batch size")
    before = memory(page.view)
    batch.press("ArrowLeft")
    assert memory(page.view) < before
    expect(page.view.locator(".smp-change")).to_contain_text(
        re.compile(r"^Batch size 20 → [\d,]+: −[\d.]+ GiB per GPU, ")
    )
    assert batch.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    page.view.get_by_text("Rarely changed", exact=True).click()
    page.view.locator("select[name=loss]").select_option(index=1)
    page.settle()
    expect(page.view.locator(".smp-changed")).to_have_count(2)
    expect(page.view.get_by_text("Rarely changed (1 changed)")).to_be_visible()
    page.view.get_by_role("button", name="Reset to 20").click()
    expect(batch).to_have_attribute("data-value", "20")
    expect(batch).to_be_focused()
    expect(page.view.locator(".smp-changed")).to_have_count(1)
    page.view.get_by_role("button", name="Back to recommended").click()
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

    verdict, reset = view.locator(".smp-verdict"), view.get_by_role("button", name="Back to recommended")
    tab_to("workload-instance_count")
    count = view.locator("input[name='workload-instance_count']")
    keyboard.type("0")
    keyboard.press("Escape")
    expect(count).to_have_value("2")
    use("batch_size", "End")
    expect(verdict).to_have_attribute("data-answer", "over")
    use("Pin", "Space")
    expect(view.locator(".smp-pin:focus")).to_have_attribute("aria-label", "Pinned")
    use("Make it fit", key="Shift+Tab")
    expect(view.locator(".smp-fit button:focus")).to_be_visible()  # the first change that makes it fit
    keyboard.press("Enter")
    page.settle()
    expect(view.locator("h2:focus")).to_have_text("Fits")
    expect(view.get_by_role("heading", name="Make it fit")).to_be_hidden()
    use("Undo", "Enter", "Shift+Tab")
    expect(verdict).to_have_attribute("data-answer", "over")
    use("Back to recommended")
    expect(reset).to_be_hidden()
    use("Details", "Enter")
    tab_to("Step time")
    for _ in range(3):
        keyboard.press("ArrowRight")
    panel = view.get_by_role("tabpanel", name="Plans")
    expect(panel.get_by_role("table")).to_be_visible()
    page.settle()
    for _ in range(3):
        tab_to("Load: ")
    keyboard.press("Enter")
    page.settle()
    expect(view.locator(".smp-change")).to_contain_text("GiB per GPU")
    use("Insert estimator cell", "Space", "Shift+Tab")
    assert [cells["what"] for cells in page.inserted] == ["job"]
    tab_to("Plans")
    keyboard.press("End")
    expect(view.get_by_role("tabpanel", name="Facts")).to_contain_text("ml.p4d.24xlarge")
    assert page.errors == []
