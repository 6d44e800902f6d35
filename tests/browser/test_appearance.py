"""How the advisor looks and reads: light and dark, wide and narrow, to eyes and to assistive technology."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

NOTHING_CLIPPED = """
view => [...view.querySelectorAll('*')]
  .filter(e => e.clientWidth > 0 && !e.closest('svg, select, .smp-scroll, .smp-pre'))
  .filter(e => getComputedStyle(e).overflowX === 'visible' && getComputedStyle(e).display !== 'inline')
  .filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.className + ': ' + e.textContent.slice(0, 60))
"""


def violations(notebook, root) -> list[str]:
    """What axe finds wrong in the widget, opened up."""
    notebook.page.evaluate("document.querySelectorAll('.smp details').forEach(one => { one.open = true; })")
    expect(notebook.advisor.locator(".smp-pre").first).to_be_visible()
    notebook.page.add_script_tag(path=str(root / "js/node_modules/axe-core/axe.min.js"))
    found = notebook.page.evaluate("axe.run('.smp')")["violations"]
    return [f"{one['id']}: {json.dumps([node['html'] for node in one['nodes']])[:400]}" for one in found]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_keeps_assistive_technology_out(advised, root, dark, screenshot):
    advised.set_theme(dark=dark)
    try:
        assert violations(advised, root) == []
        advised.page.evaluate("document.querySelectorAll('.smp details').forEach(one => { one.open = false; })")
        screenshot(advised, "dark" if dark else "light")
    finally:
        advised.set_theme(dark=False)


@pytest.mark.lab_only
@pytest.mark.parametrize("width", [1400, 1000, 720, 700])
def test_nothing_is_cut_off(advised, width, server, screenshot):
    """The narrowest beside the open file browser, which leaves the view less than half of the page."""
    without_files = server.app == "lab" and width == 720
    advised.page.set_viewport_size({"width": width, "height": 1400})
    if without_files:
        advised.page.keyboard.press("Control+b")
    try:
        advised.advisor.get_by_label("Batch size").focus()
        advised.page.keyboard.press("ArrowRight")
        for _ in range(100):  # the page takes a moment to lay itself out anew
            clipped, box = advised.advisor.evaluate(NOTHING_CLIPPED), advised.advisor.bounding_box()
            if not clipped and box["x"] + box["width"] <= width:
                break
            advised.page.wait_for_timeout(100)
        assert clipped == []
        assert box["x"] + box["width"] <= width
        screenshot(advised, f"width-{width}")
    finally:
        if without_files:
            advised.page.keyboard.press("Control+b")


@pytest.mark.lab_only
def test_a_focused_control_can_be_seen(advised):
    slider = advised.advisor.get_by_label("Batch size")
    slider.focus()
    advised.page.keyboard.press("ArrowRight")
    assert slider.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
