"""What people open the advisor for takes at most three actions from the first view."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, expect

from smp_advisor import advise
from smp_advisor.charts.plans import plotted_plans
from tests.notebook.advice import TEN_BILLION, make_advice

from .host import Host

MOST_ACTIONS = 3


@dataclass
class Person:
    """Somebody in front of the page, whose actions are counted."""

    page: Host
    actions: int = 0

    def click(self, place: Locator) -> None:
        self._act()
        place.click()

    def choose(self, place: Locator, option: str) -> None:
        """Open a list and choose from it: two actions."""
        self._act(2)
        place.select_option(label=option)

    def tab(self, name: str) -> Locator:
        self.click(self.page.view.get_by_role("tab", name=name))
        return self.page.view.get_by_role("tabpanel", name=name)

    def _act(self, count: int = 1) -> None:
        self.actions += count
        assert self.actions <= MOST_ACTIONS, f"the task takes more than {MOST_ACTIONS} actions"


def test_find_the_largest_batch_that_fits(host):
    page = host(make_advice())
    largest = page.view.get_by_role("button", name="max")
    Person(page).click(largest)
    page.settle()
    size = page.advisor.plan.batch_size
    assert size > TEN_BILLION.batch_size
    expect(page.view.locator(".smp-words")).to_have_text("Fits")
    expect(largest).to_be_hidden()  # there is no larger one
    page.view.get_by_label("Batch size").press("ArrowRight")
    expect(page.view.locator(".smp-words")).not_to_have_text("Fits")


def test_see_why_tensor_parallelism_is_off(host):
    advice = advise("10B", "ml.p4d.24xlarge", instance_count=2, sequence_length=512, library="smp-v1")
    advice.pin(tensor_parallel_degree=1)
    advice.change()
    page = host(advice)
    step = page.view.get_by_role("tabpanel", name="Why").locator("details", has_text="Tensor parallelism inside").last
    expect(step.locator("summary")).to_contain_text("not used")
    Person(page).click(step.locator("summary"))
    expect(step.get_by_text("Fixed by you. Not required. Training would be faster with it.")).to_be_visible()
    expect(step.get_by_text("With tensor_parallel_degree=2, the plan needs")).to_be_visible()


@pytest.fixture(scope="module")
def run():
    """A run of 20 billion tokens with a deadline that 16 nodes meet and 8 nodes do not."""
    question = {"tokens": "20B", "library": "fsdp", "instance_count": 16}
    days = advise("1.3B", "ml.p4d.24xlarge", **question).estimate.days
    return advise("1.3B", "ml.p4d.24xlarge", max_days=round(1.4 * days, 2), **question)


def test_compare_eight_and_sixteen_nodes_at_a_deadline(host, run):
    page = host(run)
    person = Person(page)
    panel = person.tab("Cluster size")
    chart = panel.locator(".smp-plot")
    expect(chart.get_by_text("deadline", exact=True)).to_be_visible()
    for nodes in ("8", "16"):
        expect(chart.locator(f"title:text-matches('^{nodes} x ')")).to_have_count(1)
    person.click(panel.get_by_text("Table", exact=True))
    for nodes, meets in ((8, False), (16, True)):
        row = panel.get_by_role("row").filter(has_text=re.compile(rf"^{nodes} x ml\.p4d"))
        expect(row).to_contain_text(re.compile("hours|days"))
        expect(row).to_contain_text("USD")
        assert ("beyond the limit" in row.inner_text()) != meets


def test_adopt_an_alternative(host, recommended):
    page = host(recommended.recommended)
    person = Person(page)
    panel = person.tab("Alternatives")
    person.click(panel.get_by_text("Table", exact=True))
    person.click(panel.get_by_role("row").nth(2).get_by_role("button", name="Load"))
    page.settle()
    assert page.advisor.plan == plotted_plans(recommended.recommended)[1]
    assert page.advisor.plan != recommended.recommended.plan


def test_export_for_version_three_of_the_sdk(host):
    page = host(make_advice())
    person = Person(page)
    person.choose(page.view.get_by_label("SageMaker SDK"), "SDK v3")
    person.click(page.view.get_by_role("button", name="Insert estimator cell"))
    expect(page.view.locator(".smp-status")).to_contain_text("Inserted 2 cells")
    page.settle()
    assert "ModelTrainer(" in page.inserted[0]["sources"][1]
