"""The page of the advisor: verdict, state of the kernel, second click, and a layout in which nothing moves."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.notebook.advice import PIPELINE, make_advice

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


def slide_to_the_end(page, label: str) -> None:
    page.view.get_by_label(label).press("End")
    page.settle()


def test_a_plan_that_does_not_fit_is_exported_by_a_second_click_and_carries_a_guard(host, root):
    page = host(make_advice())
    verdict = page.view.locator(".smp-verdict")
    expect(verdict).to_have_attribute("data-answer", "fits")
    slide_to_the_end(page, "Batch size")
    expect(verdict).to_have_attribute("data-answer", "over")
    expect(page.view.locator(".smp-words")).to_have_text("Does not fit")
    page.view.get_by_role("button", name="Insert estimator cell").click()
    expect(page.view.locator(".smp-status")).to_contain_text("The plan does not fit")
    page.settle()
    assert page.inserted == []
    page.page.evaluate((root / "js/node_modules/axe-core/axe.min.js").read_text())
    for light in ("true", "false"):
        page.page.evaluate("light => { document.body.dataset.jpThemeLight = light; }", light)
        assert page.page.evaluate("axe.run('.smp-verdict')")["violations"] == [], f"light theme: {light}"
    page.view.get_by_role("button", name="Insert it anyway").click()
    page.settle()
    assert "START_ANYWAY = False" in page.inserted[-1]["sources"][-1]
    page.view.get_by_label("Batch size").press("ArrowLeft")
    expect(page.view.get_by_role("button", name="Insert estimator cell")).to_be_visible()


def test_a_busy_kernel_is_shown_and_the_page_goes_on(host):
    page = host(make_advice())
    kernel = page.view.locator(".smp-kernel")
    with page.busy():
        page.view.get_by_label("Batch size").press("ArrowLeft")
        expect(kernel).to_have_text(re.compile(r"Kernel busy: \d requests? queued"))
    page.settle()
    expect(kernel).to_have_attribute("data-status", "live")


@pytest.mark.parametrize("application", ["jupyter", "vscode"])
def test_a_kernel_that_was_restarted_is_no_zombie(host, application):
    page = host(make_advice(), application=application)
    kernel = page.view.locator(".smp-kernel")
    page.restart_kernel()
    if application == "vscode":  # it does not report the restart: the next request finds it out
        page.view.get_by_label("Batch size").press("ArrowLeft")
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
    assert page.errors == []


@pytest.mark.parametrize("width", [1920, 720, 340])
def test_nothing_moves_and_nothing_is_cut_off(host, width):
    page = host(make_advice(PIPELINE), width=width, height=900)
    verdict = page.view.locator(".smp-verdict").bounding_box()
    assert verdict["height"] < (205 if width > 400 else 280)
    assert page.view.get_by_label("Batch size").bounding_box()["y"] < 450
    assert page.view.evaluate(POSITIONS) == []
    page.settle()
    assert page.view.locator(".smp-verdict").bounding_box()["height"] == verdict["height"]
    box = page.view.bounding_box()
    assert width - 40 <= box["x"] + box["width"] <= width


def test_tabs_move_by_arrows(host):
    page = host(make_advice())
    page.view.get_by_role("tab", name="Why").press("End")
    expect(page.view.get_by_role("tab", name="Assumptions and facts")).to_be_focused()
    expect(page.view.get_by_role("tabpanel", name="Assumptions and facts")).to_be_visible()
    expect(page.view.locator(".smp-facts")).to_contain_text("ml.p4d.24xlarge")
