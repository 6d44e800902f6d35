"""Blocks of the pages run, and print the outputs next to them."""

from pathlib import Path

import pytest

from scripts.pages.blocks import ROOT, executed_pages, run

pytestmark = pytest.mark.slow


PYTORCH = "docs/tutorial/from_out_of_memory_to_a_running_job.md"
NAMES = {page.relative_to(ROOT).as_posix(): page for page in executed_pages()}


@pytest.mark.parametrize(
    "page", [pytest.param(NAMES[name], id=name, marks=[pytest.mark.torch] * (name == PYTORCH)) for name in NAMES]
)
def test_the_blocks_of_a_page_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run(page)
    assert outcome.executed + len(outcome.skipped)
    assert outcome.text == page.read_text("utf-8"), f"run `python -m scripts.pages {page.relative_to(ROOT)}`"
