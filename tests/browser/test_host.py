"""The advisor's view on a page without Jupyter: as in JupyterLab, VS Code and Colab, with and without its kernel."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.notebook.advice import make_advice


@pytest.mark.parametrize("application", ["jupyter", "vscode", "colab"])
def test_a_move_reaches_the_kernel(host, application):
    page = host(make_advice(), application=application)
    slider = page.view.get_by_label("Batch size")
    slider.press("ArrowLeft")
    page.settle()
    assert slider.get_attribute("aria-valuetext") == str(page.advisor.plan.batch_size)
    assert page.advisor.plan.batch_size < make_advice().plan.batch_size
    page.advisor.reset()
    expect(slider).to_have_attribute("aria-valuetext", str(make_advice().plan.batch_size))
    assert page.errors == []


def test_messages_wait_while_the_kernel_is_busy_and_are_lost_with_it(host):
    page = host(make_advice())
    slider = page.view.get_by_label("Batch size")
    before = page.advisor.plan
    with page.busy():
        slider.press("ArrowLeft")
        assert page.advisor.plan == before
    page.settle()
    assert page.advisor.plan != before
    page.restart_kernel()
    page.view.get_by_label("Batch size").press("ArrowLeft")
    page.show(make_advice())
    expect(page.view.get_by_label("Batch size")).to_have_attribute("aria-valuetext", str(before.batch_size))
