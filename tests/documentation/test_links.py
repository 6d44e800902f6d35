"""Links of pages and notebooks, and examples of docstrings."""

import doctest
import importlib
import inspect
import json
import re
from collections import Counter
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

import smp_advisor

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
    assert text.count("<img ") == 1
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_no_page_is_a_stub() -> None:
    assert not [path for path in TEXTS if "is being written." in text_of(path)]


PACKAGE = Path(smp_advisor.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WITHOUT_EXAMPLE = {"__version__", "errors"}


def examples() -> list[doctest.DocTest]:
    """Docstrings with examples, of all modules."""
    finder, tests = doctest.DocTestFinder(exclude_empty=True), []
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text("utf-8"):
            name = ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
            tests += finder.find(importlib.import_module(name), extraglobs={"smp_advisor": smp_advisor})
    return [test for test in tests if test.examples]


@pytest.mark.slow
def test_the_examples_of_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report, runner = StringIO(), doctest.DocTestRunner(optionflags=OPTIONS)
    tests = examples()
    for test in tests:
        runner.run(test, out=report.write)
    assert not runner.failures, report.getvalue()
    assert runner.tries > 100
    # They need a model in memory, a script of the user's, or minutes: the tests of their modules run the same calls.
    skipped = [example for test in tests for example in test.examples if doctest.SKIP in example.options]
    assert len(skipped) <= 25


def test_every_public_name_has_an_example() -> None:
    names = set(smp_advisor.__all__) - WITHOUT_EXAMPLE
    assert not {name for name in names if ">>> " not in (inspect.getdoc(getattr(smp_advisor, name)) or "")}
