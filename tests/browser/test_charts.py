"""Charts of the view: figures by keyboard and pointer, tables, and the actions on their marks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

import smp_advisor as smpa
from smp_advisor import advise


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
