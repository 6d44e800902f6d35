"""Undo, redo, kept plans and comparisons in the view. All of it lives in the kernel."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.notebook.advice import make_advice


def batch(page) -> str:
    return page.view.get_by_label("Batch size").get_attribute("aria-valuetext")


def test_moves_are_undone_and_redone_by_buttons_and_keys(host):
    page = host(make_advice(tokens=300e9))
    slider = page.view.get_by_label("Batch size")
    first = batch(page)
    slider.press("ArrowLeft")
    second = batch(page)
    slider.press("ArrowLeft")
    page.settle()
    third = batch(page)
    slider.press("Control+z")
    expect(slider).to_have_attribute("aria-valuetext", second)
    slider.press("Control+z")
    expect(slider).to_have_attribute("aria-valuetext", first)
    assert page.advisor.advice.is_recommended
    slider.press("Control+y")
    expect(slider).to_have_attribute("aria-valuetext", second)
    page.view.get_by_role("button", name="Redo").click()
    expect(slider).to_have_attribute("aria-valuetext", third)
    page.view.get_by_role("button", name="Undo").click()
    expect(slider).to_have_attribute("aria-valuetext", second)
    page.advisor.advice.undo()  # Python sees and moves the same state
    expect(slider).to_have_attribute("aria-valuetext", first)
    assert page.errors == []


def test_a_drag_is_one_step_back(host):
    page = host(make_advice())
    slider = page.view.get_by_label("Batch size")
    first = batch(page)
    slider.evaluate(
        """slider => {
          for (const position of [1, 2, 3]) {
            slider.value = String(position);
            slider.dispatchEvent(new Event('input'));
          }
          slider.dispatchEvent(new Event('change'));
        }"""
    )
    page.settle()
    assert len(page.advisor.advice.history) == 2
    page.view.get_by_role("button", name="Undo").click()
    expect(slider).to_have_attribute("aria-valuetext", first)


def test_plans_are_kept_by_name_and_compared_with_the_price_of_the_difference(host, picture):
    page = host(make_advice(tokens=300e9))
    page.view.get_by_role("tab", name="Compare").click()
    tab = page.view.get_by_role("tabpanel", name="Compare")
    expect(tab.get_by_role("table").first).to_be_visible()
    page.view.get_by_label("Batch size").press("ArrowLeft")
    expect(tab.locator(".smp-difference")).to_contain_text("for the full run")
    tab.get_by_label("Keep this plan as").fill("<b>smaller</b>")
    tab.get_by_role("button", name="Keep", exact=True).click()
    expect(tab.get_by_role("row", name="<b>smaller</b>")).to_be_visible()
    assert list(page.advisor.advice.snapshots) == ["<b>smaller</b>"]
    page.view.get_by_role("button", name="Reset to recommended").click()
    page.settle()
    tab.get_by_role("combobox", name="Compare").select_option("<b>smaller</b>")
    expect(tab.get_by_role("columnheader", name="<b>smaller</b>")).to_be_visible()
    expect(tab.get_by_role("rowheader", name="Cost of the run")).to_be_visible()
    picture(page, "compare")
    tab.get_by_role("button", name="Load").click()
    page.settle()
    assert page.advisor.plan == page.advisor.advice.snapshots["<b>smaller</b>"]
    tab.get_by_role("button", name="Show: 1 back").click()
    page.settle()
    assert page.advisor.advice.is_recommended
    assert page.errors == []
