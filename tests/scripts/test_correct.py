"""Correct scripts as people write them, of every library: no findings, with their plans and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smp_advisor.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "correct").glob("*.py"))
BENCHMARK = sorted((Path(__file__).parents[2] / "benchmarks" / "scripts").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("known", [True, False], ids=["plan", "no plan"])
def test_a_correct_script_has_no_findings(path, known):
    first = path.read_text("utf-8").partition("\n")[0]
    plan = json.loads(first.removeprefix("# plan: "))
    report = check_script(path, plan if known else None)
    assert not report, str(report)


@pytest.mark.parametrize("path", BENCHMARK, ids=lambda path: path.stem)
def test_what_the_benchmark_breaks_is_whole_before(path):
    assert not check_script(path)
