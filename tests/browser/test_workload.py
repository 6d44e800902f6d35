"""The workload bar, pins and repairs, on a page without Jupyter."""

import re
import threading

import pytest
from playwright.sync_api import expect

from smp_advisor import advise

from .host import GUARD_SECONDS


@pytest.fixture(scope="module")
def source():
    return advise(
        "10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1", family="gpt2", tokens="300B"
    )


@pytest.fixture
def page(host, source):
    return host(source.recommended)


def test_a_changed_field_searches_in_place_keeps_the_pins_and_is_undone(page):
    page.view.locator(".smp-pin[data-setting=batch_size]").click()
    page.settle()
    batch = page.advisor.plan.batch_size
    page.view.get_by_label("Count", exact=True).fill("8")
    page.view.get_by_label("Count", exact=True).press("Enter")
    expect(page.view.locator(".smp-heading")).to_have_text("GPT-2 10 B on 8 × ml.p4d.24xlarge")
    assert (page.advisor.advice.cluster.nodes, page.advisor.plan.batch_size) == (8, batch)
    expect(page.view.get_by_label("Count", exact=True)).to_be_focused()
    expect(page.view.locator(".smp-pin[data-setting=batch_size]")).to_have_attribute("aria-pressed", "true")
    page.view.get_by_role("button", name="Undo").click()
    expect(page.view.locator(".smp-heading")).to_have_text("GPT-2 10 B on 16 × ml.p4d.24xlarge")
    page.view.get_by_role("button", name="Redo").click()
    expect(page.view.locator(".smp-heading")).to_have_text("GPT-2 10 B on 8 × ml.p4d.24xlarge")
    assert page.errors == []


def test_where_nothing_fits_the_page_offers_ways_out(host):
    page = host(advise("1.3B", "ml.p4d.24xlarge", library="fsdp", sequence_length=512))
    page.view.get_by_label("Model", exact=True).fill("70B")
    page.view.get_by_label("Model", exact=True).press("Enter")
    expect(page.view.locator(".smp-search-text")).to_contain_text("fits")
    page.view.get_by_role("button", name="nodes").first.click()
    expect(page.view.locator(".smp-heading")).to_contain_text(re.compile("70 ?B on"))
    assert page.advisor.advice.cluster.nodes > 1


def test_a_long_search_shows_its_progress_and_is_canceled(page, monkeypatch):
    canceled, send = threading.Event(), page.advisor._searching._send

    def send_and_wait(message) -> None:
        send(message)
        if message["kind"] == "searched":
            canceled.set()
        elif message["total"]:
            assert canceled.wait(GUARD_SECONDS)

    monkeypatch.setattr(page.advisor._searching, "_send", send_and_wait)
    before = page.advisor.plan
    page.view.get_by_label("Instance", exact=True).fill("any")
    page.view.get_by_label("Instance", exact=True).press("Enter")
    expect(page.view.get_by_role("button", name="Cancel")).to_be_visible()
    page.view.get_by_role("button", name="Cancel").click()
    page.advisor._searching.join(GUARD_SECONDS)
    page.settle()
    assert page.advisor.plan == before
    expect(page.view.locator(".smp-search-text")).to_contain_text("Canceled")
    expect(page.view.get_by_label("Instance", exact=True)).to_have_value("ml.p4d.24xlarge")


def test_a_position_that_cannot_be_reached_offers_its_repair_and_covers_no_control(page):
    slider = page.view.get_by_label("Pipeline parallel degree")
    page.settle()
    top, rows = slider.bounding_box()["y"], [row.bounding_box() for row in page.view.locator(".smp-row:visible").all()]
    slider.evaluate("slider => { slider.stepUp(); slider.dispatchEvent(new Event('input', {bubbles: true})); }")
    expect(page.view.locator(".smp-words")).to_have_text("Not possible")
    # While the slider is dragged, nothing moves.
    assert [row.bounding_box() for row in page.view.locator(".smp-row:visible").all()] == rows
    slider.evaluate("slider => { slider.stepDown(); slider.dispatchEvent(new Event('input', {bubbles: true})); }")
    slider.focus()
    slider.press("ArrowRight")
    repair = page.view.get_by_role("button", name="pipeline parallel degree 2").first
    expect(repair).to_contain_text("GiB per GPU")
    expect(page.view.locator(".smp-words")).to_have_text("Not possible")
    expect(page.view.locator(".smp-charts.smp-older")).to_be_visible()
    assert slider.bounding_box()["y"] == top
    box = page.view.locator(".smp-repair-box:visible").bounding_box()
    for row in page.view.locator(".smp-line:visible").all():
        line = row.bounding_box()
        assert line["y"] + line["height"] <= box["y"] + 1 or line["y"] >= box["y"] + box["height"] - 1
    slider.press("Escape")
    page.settle()
    assert page.advisor.plan == page.advisor.advice.recommended.plan
    slider.press("ArrowRight")
    page.view.get_by_role("button", name="pipeline parallel degree 2").first.click()
    page.settle()
    assert page.advisor.plan.pipeline_parallel_degree == 2
    assert page.advisor.plan.precision == "fp16"
    assert page.errors == []
