"""The widget with the advice of libraries beside SMP v1."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

ADVISE = """from smp_advisor import advise
advice = advise("7B", "ml.p4d.24xlarge", library="{library}", sequence_length=512{more})
advice"""


@pytest.mark.lab_only
@pytest.mark.parametrize(
    ("library", "more", "title", "label"),
    [
        ("smp-v2", ', family="llama"', "SMP v2", "Hybrid shard degree"),
        ("fsdp", "", "FSDP", "Sharding strategy"),
    ],
)
def test_controls_are_the_librarys_own_and_move(open_notebook, screenshot, library, more, title, label):
    notebook = open_notebook(ADVISE.format(library=library, more=more))
    view = notebook.advise()
    expect(view).to_contain_text(title)
    expect(view.get_by_label(label)).to_be_visible()
    expect(view.get_by_label("Pipeline parallel degree")).to_have_count(0)
    slider = view.get_by_label("Batch size")
    value = slider.get_attribute("aria-valuetext")
    slider.focus()
    notebook.page.keyboard.press("ArrowRight")
    expect(slider).not_to_have_attribute("aria-valuetext", value)
    expect(view.locator(".smp-change")).to_have_text(re.compile(rf"^Batch size {value} → [\d,]+ .*memory \+"))
    # AWS publishes reference configurations of SMP v1 and v2 only.
    expect(view.get_by_text("Nearest AWS reference")).to_have_count(1 if library == "smp-v2" else 0)
    screenshot(notebook, library)
    assert notebook.errors == []
