"""Links of the pages and notebooks lead to files and headings of the repository, on GitHub and in the site."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "notebooks").glob("*.*"))]
FENCED = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(<?(?!https?:|mailto:)([^)\s>]+)>?\)")


@cache
def text_of(path: Path) -> str:
    """The Markdown of a page, or of the cells of a notebook, without code."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return text


@cache
def anchors(path: Path) -> frozenset[str]:
    """Anchors that GitHub gives to the headings of a page: a repeated heading gets a number."""
    result, times = set(), Counter[str]()
    for title in re.findall(r"^#+ +(.*?) *$", FENCED.sub("", text_of(path)), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", title)).lower().replace(" ", "-")
        result.add(f"{slug}-{times[slug]}" if times[slug] else slug)
        times[slug] += 1
    return frozenset(result)


def problem(path: Path, target: str) -> str:
    """Why a link leads nowhere, or nothing."""
    file, _, anchor = target.partition("#")
    linked = (path.parent / file).resolve() if file else path
    if not linked.exists() or not linked.is_relative_to(ROOT):
        return "no such file"
    if anchor and anchor not in anchors(linked):
        return "no such heading"
    if path.is_relative_to(DOCS) and linked.suffix == ".md" and not linked.is_relative_to(DOCS):
        return "not part of the site"
    return ""


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    links = [(path, target) for path in TEXTS for target in LINK.findall(INLINE.sub("", FENCED.sub("", text_of(path))))]
    assert len(links) > 250
    assert not [
        f"{path.relative_to(ROOT)}: {target}: {reason}" for path, target in links if (reason := problem(path, target))
    ]


def test_the_readme_is_one_screen_and_a_half() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900
    assert text.count("![") == 1
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_no_page_is_a_stub() -> None:
    assert not [path for path in TEXTS if "is being written." in text_of(path)]
