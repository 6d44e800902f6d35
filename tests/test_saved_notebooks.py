"""The notebooks run without a network, and their saved outputs are those of a new run."""

import json
import re

import nbformat
import pytest

from scripts.notebooks.running import PATHS, run
from scripts.notebooks.saved import MEASURED, VARIES, clean, difference

# What those of a release show is tested with its room; the first notebook stays.
MARKS = {
    "calibrate_with_a_log": [pytest.mark.release],
    "cluster_for_a_deadline": [pytest.mark.release],
    "fix_an_existing_job": [pytest.mark.release],
    "training_compiler_or_not": [pytest.mark.release],
    "from_advice_to_job": [pytest.mark.moto, pytest.mark.release],
    "watch_a_run": [pytest.mark.release],
    "your_own_model": [pytest.mark.torch, pytest.mark.release],
}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, [pytest.mark.slow])) for path in PATHS],
)
def test_a_saved_notebook_is_what_a_run_gives(path):
    fresh = run(path)  # a cell that fails is an error
    clean(fresh)
    changed = difference(nbformat.read(path, as_version=4), fresh)
    assert not changed, f"run `make notebooks` and read what changed in {path.name}\n{changed}"


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in PATHS])
def test_a_saved_notebook_is_small_and_names_nothing_of_a_machine(path):
    text = path.read_text("utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert text == nbformat.writes(notebook) + "\n"
    assert len(text) < 300_000
    assert not re.search(r"/(?:tmp|home|root|work|Users)/|traceback|\.venv", text, re.IGNORECASE)
    assert set(re.findall(r"(?<!\d)\d{12}(?!\d)", json.dumps([*outputs(notebook)]))) <= ACCOUNTS
    assert "widgets" not in notebook.metadata
    assert all(re.fullmatch(r"[\w-]+-\d\d|[\da-f]{8}", cell.id) for cell in notebook.cells), "ids stay the same"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert notebook.cells[0].source.startswith("# ")
    assert sum(bool({VARIES, MEASURED} & {*cell.metadata.get("tags", [])}) for cell in code) <= 4


ACCOUNTS = {"123456789012", "658645717510", "763104351884"}
"""The account of AWS's documentation and of moto, and AWS's own registries of containers."""


def outputs(notebook):
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


def test_every_notebook_is_in_the_list(root):
    listed = (root / "notebooks" / "README.md").read_text("utf-8")
    assert re.findall(r"\]\((\w+\.ipynb)\)", listed) == [
        "quickstart.ipynb",
        "your_own_model.ipynb",
        "cluster_for_a_deadline.ipynb",
        "fix_an_existing_job.ipynb",
        "from_advice_to_job.ipynb",
        "watch_a_run.ipynb",
        "calibrate_with_a_log.ipynb",
        "training_compiler_or_not.ipynb",
    ]
    assert {path.name for path in PATHS} == set(re.findall(r"\]\((\w+\.ipynb)\)", listed))
    for path in PATHS:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
