"""Generated pages are what their generators write, and contain what they are for."""

import re
from pathlib import Path

import pytest

from scripts.pages import PAGES, gallery
from smp_advisor.core.files import data_file

CONTENT = {
    "docs/checks.md": ["SMP109", "EST501", "## Invalid plans"],
    "docs/gallery.md": ["### 60. ", "## Doubts", "+ sharding over"],
    "docs/glossary.md": ["## microbatch", "## hybrid shard degree", "## MFU"],
    "docs/libraries.md": ["`pipeline_parallel_degree`", '`library="fsdp"`'],
    "docs/stacks.md": ["`hf-sdpa`", "## Megatron-like", "| Llama | separate | 7 |"],
    "benchmarks/results/reference_rows.md": ["GPT-2 10 B", "GPT-2 60 B", "Llama 2 70 B"],
}


# Its figures are estimates, of which the recorded results have a thousand (`test_regression`).
SLOW = pytest.param("benchmarks/results/reference_rows.md", marks=[pytest.mark.slow, pytest.mark.release])
EVERY = 5
"""Of so many entries of the gallery, one is written here."""


@pytest.mark.parametrize("name", [*(name for name in PAGES if name not in {"docs/gallery.md", *SLOW.values}), SLOW])
def test_a_page_is_what_its_generator_writes(name: str, root: Path) -> None:
    written = (root / name).read_text("utf-8")
    assert written == PAGES[name](), f"run `make pages` and read what changed in {name}"
    for text in CONTENT.get(name, []):
        assert text in written


@pytest.mark.slow
def test_an_entry_of_the_gallery_is_what_its_generator_writes(root: Path) -> None:
    written = (root / "docs" / "gallery.md").read_text("utf-8")
    requests = [request for section in gallery.sections() for request in section["requests"]]
    assert len(requests) == len(re.findall(r"^### ", written, re.MULTILINE))
    assert all(text in written for text in CONTENT["docs/gallery.md"])
    for request in requests[::EVERY]:
        lines = "\n".join(gallery.entry(gallery.answer(request))).rstrip()
        assert f"\n\n{lines}\n" in written, f"run `make pages` and read what changed for {request}"


def test_the_glossary_defines_30_terms_in_alphabetical_order() -> None:
    glossary = data_file("notebook", "glossary")["term"]
    terms = [term["term"] for term in glossary]
    assert len(terms) >= 30
    assert terms == sorted(terms, key=str.lower)
    settings = [setting for term in glossary for setting in term["settings"]]
    assert len(settings) == len(set(settings))
    for term in glossary:
        assert term["text"].endswith(".")
        assert term["text"].count(". ") <= 1, term["term"]
        assert term.get("source", ("", "https://"))[1].startswith("https://")


def test_checks_and_accuracy_are_those_of_their_pages(root: Path) -> None:
    assert {f"docs/checks/{path.name}" for path in (root / "docs" / "checks").iterdir()} < PAGES.keys()

    readme = (root / "README.md").read_text("utf-8")
    page = (root / "docs" / "accuracy.md").read_text("utf-8")
    section = readme.partition("<!-- accuracy")[2].partition("<!-- end of accuracy")[0]
    rows = [line for line in section.splitlines() if re.search(r"\| \d", line)]
    assert len(rows) == 3
    assert "nobody had seen" in rows[0]
    assert len(page.split()) <= 3000
    assert {"memory", "fit"} <= set(re.findall(r"[a-z]+", section))
    for line in section.splitlines()[1:]:
        assert line in page
