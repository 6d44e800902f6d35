"""Texts are in plain American technical English: the check itself, and what it finds in the project."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "prose.py"
SPEC = importlib.util.spec_from_file_location("prose", SCRIPT)
prose = importlib.util.module_from_spec(SPEC)
sys.modules["prose"] = prose
SPEC.loader.exec_module(prose)


def test_each_phrase_is_found_and_a_correct_text_close_to_it_is_not(subtests: pytest.Subtests) -> None:
    for phrase in prose.phrases():
        with subtests.test(phrase.bad):
            assert phrase.pattern.search(phrase.bad)
            assert not phrase.pattern.search(phrase.good)
            assert phrase.instead
            for other in prose.phrases():
                assert not other.pattern.search(phrase.good), other.bad


def lines(name: str, source: str) -> list[tuple[int, str]]:
    return [(match.line, match.phrase) for match in prose.matches(Path(name), source)]


def test_code_templates_pages_and_notebooks_are_read() -> None:
    docstring = '"""A plan.\n\nIt is handed\n    48 samples."""\n'
    source = docstring + 'held = 1\n# The\n# whole\nprint(f"{held} GiB a GPU", "`told`")\n'
    assert sorted(lines("module.py", source)) == [(3, "is handed"), (7, "whole"), (8, "GiB a GPU")]

    assert lines("train.py.in", "asked = 1\n# $whole of the whole\n") == [(2, "whole"), (2, "whole")]
    assert lines("checks.toml", 'told = "it is told"\n') == [(1, "told")]
    assert lines("bars.ts", "const told = `it told ${said}`; // behaviour\n/* a\n * whole */") == [
        (1, "told"),
        (1, "behaviour"),
        (3, "whole"),
    ]
    assert lines("page.md", "Text\nsays `says` https://says.com\n") == [(2, "says")]
    assert lines("CHANGELOG.md", "# Changes\n## [Unreleased]\nanew\n## [0.1]\nanew\n") == [(3, "anew")]
    cells = [{"cell_type": "markdown", "source": ["It says"]}, {"cell_type": "code", "source": ["says # told"]}]
    assert lines("start.ipynb", json.dumps({"cells": cells})) == [(1, "says"), (2, "told")]


def test_abbreviations_and_names_have_meanings() -> None:
    page = "MFU per GPU, and QLX.\n\n```text\nQQX\n```\n`QZX` and the quality index (QI): QI\n"
    assert lines("page.md", page) == [(1, "QLX")]
    assert lines("module.py", '"""QLX."""\n') == []

    """``make prose`` counts them, and looks for the phrases in all texts."""
    limits = prose.rules()["empty_names"]
    assert limits["most"] <= limits["at_first"]
