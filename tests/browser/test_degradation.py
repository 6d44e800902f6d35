"""Where something is missing: the kernel, the widget's front end, the lab extension."""

import json
import re

import pytest
from playwright.sync_api import expect

from .page import ADVISE

ANYWIDGET = re.compile(r"/extensions/anywidget/")


OUTPUT_CONTAINS = """
text => {
  const { content } = window.jupyterapp.shell.currentWidget;
  return JSON.stringify(content.widgets[0].model.outputs.toJSON()).includes(text);
}
"""


REFUSED = "bad = %smp_advise 70B --instance ml.g5.2xlarge --count 1"


@pytest.mark.lab_only
def test_a_saved_notebook_without_its_kernel_shows_the_pictures(open_notebook, application, server):
    advised = open_notebook(ADVISE, REFUSED)
    advised.advise()
    advised.run(1)
    expect(advised.output(1).locator(".smp-sheet")).to_contain_text("%smp_advise 70B --instance")
    view = advised.advisor
    name = advised.page.url.rsplit("/", 1)[1].split("?")[0]
    slider = view.get_by_role("slider", name="Batch size")
    slider.press("ArrowLeft")
    value = slider.get_attribute("data-value")
    # The kernel writes the output again after the move.
    advised.page.wait_for_function(OUTPUT_CONTAINS, arg="Your plan.", polling=200)
    advised.page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    path = server.work / name
    assert "Your plan." in path.read_text()
    # The view is the same: it kept its focus.
    expect(slider).to_be_focused()
    expect(slider).to_have_attribute("data-value", value)
    advised.page.reload()
    expect(slider).to_have_attribute("data-value", value)  # the kernel still has the widget
    expect(advised.output(0).locator(".smp-sheet")).to_have_count(0)
    application.close(kernel=False)
    # ipywidgets logs that the new kernel has no such widget: whatever it shows of that is shown by then.
    with application.context.expect_console_message(lambda message: "model not found" in message.text):
        trusted = application.open(name)
    expect_the_picture(trusted)
    application.close(kernel=False)
    # What a colleague gets: a file that this server has not signed.
    saved = json.loads(path.read_text())
    saved["metadata"]["sent"] = "by mail"
    path.write_text(json.dumps(saved))
    untrusted = application.open(name)
    expect_the_picture(untrusted)


def expect_the_picture(notebook):
    picture = notebook.output(0).locator(".smp-sheet")
    expect(picture).to_be_visible()
    expect(picture).to_contain_text("Your plan.")
    expect(picture).to_contain_text("Against the recommended plan")
    expect(notebook.page.locator(".jp-Notebook")).not_to_contain_text("Error displaying")
    expect(picture.get_by_role("row", name="Peak")).to_contain_text("█")


@pytest.fixture
def without_anywidget(application):
    application.close(page=False)  # it has loaded anywidget
    application.context.route(ANYWIDGET, lambda route: route.abort())
    yield
    application.context.unroute(ANYWIDGET)
    application.close(page=False)


@pytest.mark.lab_only
@pytest.mark.usefixtures("without_anywidget")
def test_where_the_front_end_cannot_load_the_picture_has_its_notice_and_follows_the_plan(open_notebook):
    notebook = open_notebook(ADVISE, "advice.move(batch_size=8)", "%smp_export")
    notebook.run(0)
    expect(notebook.output(0)).to_contain_text("reload it once and run the cell again")
    expect(notebook.output(0)).to_contain_text("Memory per GPU")
    notebook.run(1)
    expect(notebook.output(0)).to_contain_text("Your plan.")
    notebook.run(2)
    expect(notebook.cells).to_have_count(4)  # the code is put into the next cell
    assert "PyTorch(" in notebook.source(3)
