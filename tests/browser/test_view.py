"""The view of the advisor: what it shows, what a move does, and the code that it hands over."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Frame, Locator, expect

from tests.notebook.advice import PIPELINE, make_advice

DRAG_AND_CLICK = """
view => {
  const slider = view.querySelector('input[name=batch_size]');
  const positions = [...Array(Number(slider.max) + 1).keys()];
  for (const position of [...positions, ...positions.slice(3).reverse()]) {
    slider.value = String(position);
    slider.dispatchEvent(new Event('input'));
  }
  [...view.querySelectorAll('button')].find(button => button.textContent === 'Insert estimator cell').click();
  return slider.getAttribute('aria-valuetext');
}
"""
PANEL = ".smp [role=tabpanel]:not([hidden])"
NOTHING_CLIPPED = """
view => [...view.querySelectorAll('*')]
  .filter(e => e.clientWidth > 0 && !e.closest('svg, select, .smp-scroll, .smp-pre'))
  .filter(e => getComputedStyle(e).overflowX === 'visible' && getComputedStyle(e).display !== 'inline')
  .filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.className + ': ' + e.textContent.slice(0, 60))
"""


def open_tab(view: Locator, name: str) -> Locator:
    view.get_by_role("tab", name=name).click()
    return view.get_by_role("tabpanel", name=name)


def memory(view: Locator) -> float:
    return float(view.locator(".smp-memory").inner_text().split()[0])


def test_a_move_shows_its_effect_and_can_be_taken_back(host):
    page = host(make_advice())
    before, slider = memory(page.view), page.view.get_by_label("Batch size")
    slider.press("ArrowLeft")
    assert memory(page.view) < before
    expect(page.view.locator(".smp-change")).to_have_text(
        re.compile(
            r"^Batch size 20 → [\d,]+ \(global batch [\d,]+ → [\d,]+\):"
            r" memory −[\d.]+ GiB per GPU \([\d.]+ of [\d.]+ GiB\)"
        )
    )
    assert slider.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    page.view.get_by_role("button", name="Reset to recommended").click()
    expect(slider).to_have_attribute("aria-valuetext", "20")
    assert memory(page.view) == before


def test_a_pipeline_has_its_own_controls_and_one_bar_a_group_of_stages(host, picture):
    page = host(make_advice(PIPELINE))
    degree = page.view.get_by_label("Pipeline parallel degree")
    expect(page.view.get_by_label("Pipeline schedule")).to_be_enabled()
    expect(page.view.get_by_text("Stage 0").first).to_be_visible()
    picture(page, "pipeline")
    degree.press("Home")
    expect(page.view.get_by_label("Pipeline schedule")).to_be_disabled()


def test_a_fast_drag_and_a_click_hand_over_the_plan_of_the_slider(host):
    page = host(make_advice())
    value = page.view.evaluate(DRAG_AND_CLICK)
    expect(page.view.locator(".smp-status")).to_have_text(
        "Inserted 2 cells below: the training script, then the estimator."
    )
    page.settle()
    assert [cells["what"] for cells in page.inserted] == ["job"]
    assert f'"batch_size": {value},' in page.inserted[0]["sources"][1]
    expect(page.view.get_by_label("Batch size")).to_have_attribute("aria-valuetext", value)


@pytest.mark.parametrize("application", ["vscode", "colab"])
def test_without_the_lab_extension_a_move_reaches_the_kernel_and_the_code_the_clipboard(host, application):
    page = host(make_advice(), application=application)
    slider = page.view.get_by_label("Batch size")
    slider.press("ArrowLeft")
    page.settle()
    assert slider.get_attribute("aria-valuetext") == str(page.advisor.plan.batch_size)
    page.advisor.reset()
    expect(slider).to_have_attribute("aria-valuetext", str(make_advice().plan.batch_size))
    page.view.get_by_role("button", name="Insert estimator cell").click()
    # Colab's frame has no permission for the clipboard's newer interface, and the older one copies.
    expect(page.view.locator(".smp-status")).to_contain_text("Copied to the clipboard")
    page.page.bring_to_front()
    assert "PyTorch(" in page.page.evaluate("navigator.clipboard.readText()")
    assert page.inserted == []
    refusals = [error for error in page.errors if "Clipboard API" in error]
    assert page.errors == refusals


@pytest.mark.parametrize(
    ("application", "dark"),
    [("jupyter", False), ("jupyter", True), ("vscode", True), ("colab", True)],
    ids=["light", "dark", "vscode", "colab"],
)
def test_nothing_keeps_assistive_technology_out(host, root, application, dark, picture):
    page = host(make_advice(), application=application, dark=dark)
    picture(page, f"{application}-{'dark' if dark else 'light'}")
    frame = page.page.frames[-1]
    # Evaluated: the policy of some applications refuses the tag of a script.
    frame.evaluate((root / "js/node_modules/axe-core/axe.min.js").read_text())
    assert violations(frame, ".smp", "axe.run(part)") == []
    # The rules of colors depend on the theme, the others on the page alone.
    rules = "axe.run(part, dark ? { runOnly: ['color-contrast'] } : {})".replace("dark", str(dark).lower())
    for tab in page.view.get_by_role("tab").all() if application == "jupyter" else []:
        tab.click()
        # Only those of this tab: others would request data, and a panel that waits is dimmed.
        frame.evaluate(f"document.querySelectorAll('{PANEL} details').forEach(each => {{ each.open = true; }})")
        page.settle()
        expect(page.view.locator(f"{PANEL.removeprefix('.smp ')} .smp-panel[aria-busy='true']")).to_have_count(0)
        assert violations(frame, PANEL, rules) == [], tab.inner_text()


def violations(frame: Frame, part: str, rules: str) -> list[str]:
    """Rules of axe that a part of the page violates, with its elements."""
    found = frame.evaluate(f"async part => (await {rules}).violations", part)
    return [f"{each['id']}: {json.dumps([node['html'] for node in each['nodes']])[:400]}" for each in found]


def test_the_plan_of_an_earlier_kernel_is_offered_in_a_narrow_view_too(host):
    page = host(make_advice(), width=420)
    name = "Back to the plan before the restart"
    expect(page.view.get_by_role("button", name=name)).to_be_hidden()
    page.view.get_by_label("Batch size").press("ArrowLeft")
    page.settle()
    moved = page.view.get_by_label("Batch size").input_value()
    page.restart_kernel()
    expect(page.view.locator(".smp-kernel")).to_have_attribute("data-status", "gone")
    page.show(make_advice())
    offer = page.view.get_by_role("button", name=name)
    expect(offer).to_be_visible()
    assert page.view.evaluate(NOTHING_CLIPPED) == []
    offer.click()
    expect(page.view.get_by_label("Batch size")).to_have_value(moved)
    expect(offer).to_be_hidden()
