"""Charts of the view, and undo, redo, kept plans and comparisons, all of which live in the kernel."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

import smp_advisor as smpa
from smp_advisor import advise
from tests.notebook.advice import make_advice


def open_tab(page, name: str) -> Locator:
    page.view.get_by_role("tab", name=name).click()
    panel = page.view.get_by_role("tabpanel", name=name)
    expect(panel.locator(".smp-chart").first).to_be_visible()
    return panel


def test_clusters_have_a_line_for_each_type_and_are_searched_on_request(host):
    page = host(advise("1.3B", "ml.p4d.24xlarge", instance_count=4, tokens="20B", library="fsdp"))
    panel = open_tab(page, "Cluster size")
    expect(panel.locator("path.smp-curve")).to_have_count(1)
    panel.get_by_label("Add an instance type").select_option(index=1)
    expect(panel.locator("path.smp-curve")).to_have_count(2)
    panel.get_by_text("Table", exact=True).click()
    panel.get_by_role("button", name="Adopt: 8 x ml.p4d.24xlarge", exact=True).click()
    expect(page.view.get_by_role("heading", name="8 × ml.p4d.24xlarge")).to_be_visible()
    assert page.advisor.advice.cluster.nodes == 8


def test_the_rank_map_has_the_contents_of_every_gpu(host, recommended):
    page = host(recommended.recommended)
    page.view.get_by_role("tab", name="Rank map").click()
    table = page.view.get_by_role("group", name="Contents of every GPU")
    expect(table.get_by_role("columnheader", name="GPU 7")).to_be_visible()
    expect(table.get_by_role("rowheader")).to_have_count(1)


@pytest.mark.torch
def test_a_block_of_a_profile_leads_to_the_control_that_checkpoints_it(host):
    torch = pytest.importorskip("torch")
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)) for _ in range(4)
    ]
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Sequential(*blocks))
    profile = smpa.profile(model, inputs=torch.randn(8, 32), stages=("trace",))
    made = smpa.advise(profile, "ml.p4d.24xlarge", library="fsdp", activation_checkpointing=False)
    rows = made.chart("modules").rows
    assert [row[0] for row in rows if row[-1]] == ["1.0", "1.1", "1.2", "1.3"]
    page = host(made.recommended)
    panel = open_tab(page, "Modules")
    panel.get_by_label("Size by").select_option("FLOPs")
    expect(panel.locator(".smp-plot title").first).to_contain_text("100.0 % of the FLOPs")
    panel.get_by_text("Table", exact=True).click()
    expect(panel.get_by_role("button", name="Checkpoint the blocks")).to_have_count(4)
    panel.locator(".smp-plot .smp-c2").first.click()
    page.settle()
    assert page.advisor.plan.activation_checkpointing
    expect(page.view.locator("[name=activation_checkpointing]")).to_be_focused()
    assert page.errors == []


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
