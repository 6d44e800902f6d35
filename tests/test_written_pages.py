"""Generated pages are what their generators write, and contain what they are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.pages import PAGES
from smp_advisor.findings.catalog import catalog
from smp_advisor.notebook.glossary import glossary, term_for

CONTENT = {
    "docs/executed_blocks.md": ["docs/how_to/calibrate.md"],
    "docs/checks.md": ["SMP109", "EST501", "## Invalid plans"],
    "docs/gallery.md": ["### 60. ", "## Doubts", "+ sharding over"],
    "docs/glossary.md": ["## microbatch", "## hybrid shard degree", "## MFU"],
    "docs/libraries.md": ["`pipeline_parallel_degree`", '`library="fsdp"`'],
    "docs/stacks.md": ["`hf-sdpa`", "## Megatron-like", "| Llama | separate | 7 |"],
    "benchmarks/results/reference_rows.md": ["## 10 B", "## 30 B", "## 60 B", "## SMP v2, 70 B"],
}


ADVISED = {"docs/gallery.md", "benchmarks/results/reference_rows.md"}
"""Pages whose generators search for plans."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ADVISED else name for name in PAGES]
)
def test_a_page_is_what_its_generator_writes(name: str, root: Path) -> None:
    written = (root / name).read_text("utf-8")
    assert written == PAGES[name](), f"run `make pages` and read what changed in {name}"
    for text in CONTENT.get(name, [Path(name).stem] if name.startswith("docs/checks/") else []):
        assert text in written


def test_each_check_has_its_page_and_no_other_has_one(root: Path) -> None:
    assert {path.name for path in (root / "docs" / "checks").iterdir()} == {f"{name}.md" for name in catalog()}


def test_the_glossary_defines_30_terms_in_alphabetical_order() -> None:
    terms = [term.term for term in glossary()]
    assert len(terms) >= 30
    assert terms == sorted(terms, key=str.lower)
    settings = [setting for term in glossary() for setting in term.settings]
    assert len(settings) == len(set(settings))
    for term in glossary():
        assert term.text.endswith(".")
        assert term.text.count(". ") <= 1, term.term
        assert bool(term.source_title) == term.source_url.startswith("https://")
    assert term_for("tensor_parallel_degree").term == "tensor parallel degree"
    assert term_for("headroom_gib").anchor == "headroom"
    assert term_for("no such setting") is None


def test_the_readme_s_accuracy_is_that_of_its_page(root: Path) -> None:
    readme = (root / "README.md").read_text("utf-8")
    page = (root / "docs" / "accuracy.md").read_text("utf-8")
    section = readme.partition("<!-- accuracy")[2].partition("<!-- end of accuracy")[0]
    rows = [line for line in section.splitlines() if re.search(r"\| \d", line)]
    assert "publications left out of the fit" in rows[0]
    assert {"memory", "fit"} <= set(re.findall(r"[a-z]+", section))
    for line in rows:
        assert line in page
