"""Configurations that AWS published as working read into plans, suit their versions, and are judged to fit."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from benchmarks.accuracy_rows.table import read_table
from benchmarks.published_plans import Judgment, judge, read_plan
from smp_advisor.libraries import violations

TABLE = Path(__file__).parent / "data" / "published_smp_configurations.csv"
ROWS = read_table(TABLE).rows


@cache
def judged() -> list[Judgment]:
    return judge(TABLE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.text("id"))
def test_every_row_reads_into_a_plan_of_its_version(row):
    plan = read_plan(row)
    assert plan.library == f"smp-v{row.text('smp_version')}"
    assert list(violations(plan.parameters, version=plan.version, library=plan.library)) == []


def test_nothing_is_refused_and_what_cannot_be_judged_has_a_reason():
    outcomes = Counter(one.outcome for one in judged())
    assert outcomes["refused"] == 0
    unjudged = [one for one in judged() if one.outcome == "not judged"]
    assert len(unjudged) <= 3
    assert all(one.reason for one in unjudged)


def test_what_is_published_as_working_is_judged_to_fit():
    decided = {one.row: one.outcome for one in judged() if one.outcome in {"fits", "does not fit"}}
    assert len(decided) >= 37
    assert [row for row, outcome in decided.items() if outcome == "does not fit"] == []
