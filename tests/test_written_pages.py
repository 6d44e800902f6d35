"""Pages that hold figures say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType


def script(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_rows_are_what_their_script_writes(root: Path) -> None:
    rows = script(root, "reference_rows")
    written = rows.PAGE.read_text("utf-8")
    assert written == rows.page(), "run `python scripts/reference_rows.py` and read what changed"
    for title in ("## 10 B", "## 30 B", "## 60 B", "## SMP v2, 70 B"):
        assert title in written


def test_the_readme_shows_what_the_demo_prints(root: Path) -> None:
    readme = script(root, "readme")
    written = readme.README.read_text("utf-8")
    assert "Recommendation\n--------------" in written
    assert written == readme.renewed(written), "run `python scripts/readme.py` and read what changed"


def test_the_libraries_are_what_their_script_writes(root: Path) -> None:
    libraries = script(root, "libraries_page")
    assert libraries.PAGE.read_text("utf-8") == libraries.page(), "run `python scripts/libraries_page.py`"


def test_the_readme_s_accuracy_is_that_of_its_page(root: Path) -> None:
    readme = (root / "README.md").read_text("utf-8").lower()
    page = (root / "docs" / "accuracy.md").read_text("utf-8")
    titles = {
        "step time, a100 and h100": "Step time, A100 and H100, network known",
        "step time, other gpus": "Step time, other GPUs",
        "peak memory, allocated": "Peak memory, allocated",
        "peak memory, reserved and total": "Peak memory, reserved and total",
    }
    for short, title in titles.items():
        rows, median, p90 = re.search(
            rf"^\| {title} \| (\d+) \| ([\d.]+ %) \| ([\d.]+ %) ", page, re.MULTILINE
        ).groups()
        assert f"| {short} | {rows} | {median} | {p90} |" in readme
    for title in (
        "Ran, predicted not to fit",
        "Ran out of memory, predicted to fit",
        "Ran out of memory, 95 % sure to fit",
    ):
        share = re.search(rf"^\| {title} \| \d+ \| ([\d.]+ %)", page, re.MULTILINE).group(1)
        assert share in readme, title
