"""The view of the advisor: what it shows, what a move does, and the code that it hands over."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Frame, Locator, expect

from tests.notebook.advice import TEN_BILLION, make_advice

from .host import Host

DRAG_AND_CLICK = """
view => {
  const slider = view.querySelector('input[name=batch_size]');
  const positions = [...Array(Number(slider.max) + 1).keys()];
  for (const position of [...positions, ...positions.slice(3).reverse()]) {
    slider.value = String(position);
    slider.dispatchEvent(new Event('input'));
  }
  [...view.querySelectorAll('button')].find(button => button.textContent === 'Insert estimator cell').click();
  return slider.dataset.value;
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


def open_details(view: Locator) -> None:
    view.locator(".smp-details").evaluate("details => { details.open = true; }")


def open_menu(view: Locator) -> None:
    view.locator(".smp-menu").evaluate("details => { details.open = true; }")


def open_tab(view: Locator, name: str) -> Locator:
    open_details(view)
    view.get_by_role("tab", name=name).click()
    return view.get_by_role("tabpanel", name=name)


def violations_in_both_themes(page: Host, root: Path, part: str) -> list[str]:
    found, frame = [], page.page.frames[-1]
    for light in ("true", "false"):
        frame.evaluate("light => { document.body.dataset.jpThemeLight = light; }", light)
        found += violations(frame, root, part)
    return found


def memory(view: Locator) -> float:
    return float(view.locator(".smp-memory").inner_text().split()[0])


def test_a_fast_drag_and_a_click_hand_over_the_plan_of_the_slider(host):
    page = host(make_advice())
    open_menu(page.view)
    page.view.get_by_label("SageMaker SDK").select_option(label="SDK v3")
    value = page.view.evaluate(DRAG_AND_CLICK)
    expect(page.view.locator(".smp-status")).to_have_text(
        "Inserted 2 cells below: the training script, then the estimator."
    )
    page.settle()
    assert [cells["what"] for cells in page.inserted] == ["job"]
    assert f'"batch_size": {value},' in page.inserted[0]["sources"][1]
    assert "ModelTrainer(" in page.inserted[0]["sources"][1]
    expect(page.view.get_by_label("Batch size")).to_have_attribute("data-value", value)


@pytest.mark.parametrize("application", ["vscode", "colab"])
def test_without_the_lab_extension_a_move_reaches_the_kernel_and_the_code_the_clipboard(host, application):
    page = host(make_advice(), application=application)
    slider = page.view.get_by_label("Batch size")
    slider.press("ArrowLeft")
    page.settle()
    assert slider.get_attribute("data-value") == str(page.advisor.plan.batch_size)
    page.advisor.reset()
    expect(slider).to_have_attribute("data-value", str(make_advice().plan.batch_size))
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
def test_nothing_keeps_assistive_technology_out(host, root, application, dark):
    page = host(make_advice(), application=application, dark=dark)
    frame = page.page.frames[-1]
    assert violations(frame, root, ".smp") == []
    # The rules of colors depend on the theme, the others on the page alone.
    rules = "axe.run(part, dark ? { runOnly: ['color-contrast'] } : {})".replace("dark", str(dark).lower())
    open_details(page.view)
    open_menu(page.view)
    for tab in page.view.get_by_role("tab").all() if application == "jupyter" else []:
        tab.click()
        # Only those of this tab: others would request data, and a panel that waits is dimmed.
        frame.evaluate(f"document.querySelectorAll('{PANEL} details').forEach(each => {{ each.open = true; }})")
        page.settle()
        expect(page.view.locator(f"{PANEL.removeprefix('.smp ')} .smp-panel[aria-busy='true']")).to_have_count(0)
        assert violations(frame, root, PANEL, rules) == [], tab.inner_text()


def violations(frame: Frame, root: Path, part: str, rules: str = "axe.run(part)") -> list[str]:
    """Rules of axe that a part of the page violates, with its elements."""
    # Evaluated: the policy of some applications refuses the tag of a script.
    frame.evaluate((root / "js/node_modules/axe-core/axe.min.js").read_text())
    found = frame.evaluate(f"async part => (await {rules}).violations", part)
    return [f"{each['id']}: {json.dumps([node['html'] for node in each['nodes']])[:400]}" for each in found]


def test_find_the_largest_batch_that_fits(host):
    page = host(make_advice())
    largest = page.view.get_by_role("button", name="max")
    largest.click()
    page.settle()
    size = page.advisor.plan.batch_size
    assert size > TEN_BILLION.batch_size
    expect(page.view.locator(".smp-words")).to_have_text("Fits")
    expect(largest).to_be_hidden()  # there is no larger one
    page.view.get_by_label("Batch size").press("ArrowRight")
    expect(page.view.locator(".smp-words")).not_to_have_text("Fits")
