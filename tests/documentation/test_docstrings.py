"""Examples of docstrings run, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from io import StringIO
from pathlib import Path

import pytest

import smp_advisor

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
    assert runner.tries > 120
    # They need a model in memory, a script of the user's, or minutes: the tests of their modules run the same calls.
    skipped = [example for test in tests for example in test.examples if doctest.SKIP in example.options]
    assert len(skipped) <= 25


def test_every_public_name_has_an_example() -> None:
    names = set(smp_advisor.__all__) - WITHOUT_EXAMPLE
    assert not {name for name in names if ">>> " not in (inspect.getdoc(getattr(smp_advisor, name)) or "")}
