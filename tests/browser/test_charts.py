"""Charts of the view, and undo and redo, which live in the kernel."""

import re

from playwright.sync_api import expect

from smp_advisor import advise
from smp_advisor.charts.plans import plotted_plans
from tests.notebook.advice import make_advice

from .test_view import open_tab


def test_clusters_have_a_line_for_each_type_are_searched_on_request_and_compared_at_a_deadline(host):
    question = {"tokens": "20B", "library": "fsdp", "instance_count": 16}
    days = advise("1.3B", "ml.p4d.24xlarge", **question).estimate.days
    page = host(advise("1.3B", "ml.p4d.24xlarge", max_days=round(1.4 * days, 2), **question))
    panel = open_tab(page.view, "Other clusters")
    expect(panel.locator("path.smp-curve")).to_have_count(1)
    chart = panel.locator(".smp-plot")
    expect(chart.get_by_text("deadline", exact=True)).to_be_visible()
    for nodes in ("8", "16"):
        expect(chart.locator(f"title:text-matches('^{nodes} x ')")).to_have_count(1)
    panel.get_by_label("Add an instance type").select_option(index=1)
    expect(panel.locator("path.smp-curve")).to_have_count(2)
    panel.get_by_text("Table", exact=True).click()
    for nodes, meets in ((8, False), (16, True)):
        row = panel.get_by_role("row").filter(has_text=re.compile(rf"^{nodes} x ml\.p4d\."))
        expect(row).to_contain_text(re.compile("hours|days"))
        expect(row).to_contain_text("$")
        assert ("beyond the limit" in row.inner_text()) != meets
    panel.get_by_role("button", name="Adopt: 32 x ml.p4d.24xlarge", exact=True).click()
    expect(page.view.get_by_role("heading", name="32 × ml.p4d.24xlarge")).to_be_visible()
    assert page.advisor.advice.cluster.nodes == 32


def test_the_rank_map_has_the_contents_of_every_gpu_and_a_table_loads_an_alternative(host, recommended):
    page = host(recommended.recommended)
    open_tab(page.view, "Facts")
    table = page.view.get_by_role("group", name="Contents of every GPU")
    expect(table.get_by_role("columnheader", name="GPU 7")).to_be_visible()
    expect(table.get_by_role("rowheader")).to_have_count(2)  # nodes
    panel = open_tab(page.view, "Plans")
    panel.get_by_role("row").nth(2).get_by_role("button", name="Load").click()
    page.settle()
    assert page.advisor.plan == plotted_plans(recommended.recommended)[1] != recommended.recommended.plan


DRAG = """
slider => {
  for (const position of [1, 2, 3]) {
    slider.value = String(position);
    slider.dispatchEvent(new Event('input'));
  }
  slider.dispatchEvent(new Event('change'));
}
"""


def test_a_drag_is_one_step_undone_and_redone_by_keys_buttons_and_python(host):
    page = host(make_advice(tokens=300e9))
    slider = page.view.get_by_label("Batch size")
    first = slider.get_attribute("data-value")
    slider.evaluate(DRAG)
    page.settle()
    last = slider.get_attribute("data-value")
    undo, redo = (page.view.get_by_role("button", name=name) for name in ("Undo", "Redo"))
    steps = (
        (lambda: slider.press("Control+z"), first),
        (lambda: slider.press("Control+y"), last),
        (undo.click, first),
        (redo.click, last),
        (page.advisor.advice.undo, first),  # Python sees and moves the same state
    )
    for step, shown in steps:
        step()
        expect(slider).to_have_attribute("data-value", shown)
    assert page.advisor.advice.is_recommended
    assert page.errors == []
