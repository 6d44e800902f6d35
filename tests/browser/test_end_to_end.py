"""From ``%load_ext`` to a training job: one click, two cells run, and the job that the account then holds."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.moto_harness.proxy import Account, mock_account

from .page import REFERENCE, NotebookPage
from .server import PREFERENCES

pytestmark = [pytest.mark.lab_only, pytest.mark.moto, pytest.mark.slow]


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with mock_account() as made:
        yield made


@pytest.fixture
def notebook(open_notebook, application, account) -> Iterator[NotebookPage]:
    """A notebook whose kernel reaches the mock account through environment variables alone, and ends with the test."""
    yield open_notebook(f"import os\n\nos.environ |= {account.environment!r}\n{REFERENCE}")
    application.close(kernel=False)


def test_one_click_and_two_runs_start_the_job_that_the_widget_shows(notebook, account, server):
    before = len(account.jobs(PREFERENCES["region"]))
    view = notebook.advise()
    slider = view.get_by_label("Batch size")
    slider.focus()
    for _ in range(2):
        notebook.page.keyboard.press("ArrowLeft")
    batch = int(slider.get_attribute("data-value").replace(",", ""))
    view.get_by_role("button", name="Insert estimator cell").click()
    expect(notebook.cells).to_have_count(3)
    notebook.run(1)
    notebook.run(2)
    expect(notebook.output(2).last).to_contain_text("Started ")
    jobs = account.jobs(PREFERENCES["region"])
    assert len(jobs) == before + 1
    job = jobs[-1]
    assert job["TrainingJobName"] in notebook.output(2).last.inner_text()
    assert job["ResourceConfig"]["InstanceType"] == "ml.p4d.24xlarge"
    assert job["ResourceConfig"]["InstanceCount"] == 16
    sent = {key: json.loads(value) for key, value in job["HyperParameters"].items()}
    assert sent["batch_size"] == batch
    write = "import json, pathlib; pathlib.Path('plan.json').write_text(json.dumps(advice.plan.parameters))"
    notebook.code(0).click()
    notebook.page.evaluate(
        "source => window.jupyterapp.shell.currentWidget.content.widgets[0].model.sharedModel.setSource(source)", write
    )
    notebook.run(0)
    assert json.loads((server.work / "plan.json").read_text()) == sent["mp_parameters"]
