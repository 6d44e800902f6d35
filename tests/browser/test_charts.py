"""Charts of the view: figures by keyboard and pointer, tables, and the actions on their marks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from smp_advisor import advise
from smp_advisor.charts.plans import plotted_plans


@pytest.fixture(scope="module")
def advice():
    return advise("10B", "ml.p4d.24xlarge", instance_count=4, tokens="20B", library="smp-v1")


def open_tab(page, name: str) -> Locator:
    page.view.get_by_role("tab", name=name).click()
    panel = page.view.get_by_role("tabpanel", name=name)
    expect(panel.locator(".smp-chart").first).to_be_visible()
    return panel


def test_the_curve_of_a_setting_sets_it_from_the_keyboard(host, advice):
    page = host(advice.recommended)
    page.view.get_by_role("tab", name="Curves").click()
    chart = page.view.get_by_role("tabpanel", name="Curves")
    chart.get_by_label("Setting of the curve").select_option("batch_size")
    page.settle()
    before = page.advisor.plan.batch_size
    expect(chart.locator(".smp-now title").first).to_contain_text(f"{before}: ")
    chart.locator(".smp-plot").focus()
    page.page.keyboard.press("Home")
    expect(chart.locator(".smp-readout")).to_contain_text("tokens/s")
    page.page.keyboard.press("Enter")
    page.settle()
    assert page.advisor.plan.batch_size < before
    expect(chart.locator(".smp-plot .smp-best")).to_have_count(2)
    expect(page.view.locator(".smp-plot .smp-ghost")).not_to_have_count(0)
    assert page.view.locator(".smp-curve-box .smp-chart").count() >= 3
    assert page.errors == []


def test_a_point_of_the_alternatives_loads_its_plan(host, advice):
    page = host(advice.recommended)
    panel = open_tab(page, "Alternatives")
    plans = plotted_plans(advice.recommended)
    panel.locator(".smp-plot").focus()
    page.page.keyboard.press("End")
    title = panel.locator(".smp-readout").inner_text()
    page.page.keyboard.press("Enter")
    page.settle()
    titles = page.advisor.advice.recommended.chart("alternatives").data["titles"]
    assert page.advisor.plan == plans[titles.index(title)]
    panel.get_by_text("Table", exact=True).click()
    panel.get_by_role("row").nth(2).get_by_role("button").click()
    page.settle()
    assert page.advisor.plan == plans[1]
    plot = panel.locator(".smp-plot").bounding_box()
    page.page.mouse.move(plot["x"] + 50, plot["y"] + 24)
    page.page.mouse.down()
    page.page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + 130, steps=4)
    page.page.mouse.up()
    expect(panel.locator(".smp-readout")).to_contain_text("selected")
    assert 1 < panel.get_by_role("row").count() < len(plans) + 1


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


def test_rank_map_and_schedule_follow_the_plan(host, advice):
    page = host(advice.recommended)
    panel = open_tab(page, "Schedule")
    stages = page.advisor.plan.pipeline_parallel_degree
    expect(panel.locator(".smp-plot .smp-idle")).to_have_count(stages)
    page.view.get_by_role("slider", name="Pipeline parallel degree").press("ArrowRight")
    page.settle()
    expect(panel.locator(".smp-plot .smp-idle")).to_have_count(page.advisor.plan.pipeline_parallel_degree)
    panel = open_tab(page, "Rank map")
    expect(panel.locator(".smp-gpu")).to_have_count(32)
    panel.get_by_label("Colors by").select_option(index=1)
    expect(panel.locator(".smp-gpu").first.locator("title")).to_contain_text("Node 0, GPU 0, rank 0")
