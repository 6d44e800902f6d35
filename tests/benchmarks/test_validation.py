"""The measured rows: each has a date and a place, and a table that came after the constants has its first score."""

import csv
from pathlib import Path

from benchmarks.accuracy_rows.table import read_table

ROOT = Path(__file__).parents[2] / "validation"
TABLES = sorted(path for path in ROOT.glob("*/*.csv") if path.parent.name not in {"collectives", "one_gpu"})
FIRST_SCORED = "2026-11-28"
"""Rows that came later are scored once before anybody looks at them, and that score stays."""


def test_every_row_has_a_date_and_a_place_and_a_new_table_has_its_first_score():
    with (ROOT / "first_scores.csv").open(encoding="utf-8", newline="") as file:
        scored = {row["table"]: row for row in csv.DictReader(file)}
    for path in TABLES:
        name, rows = path.relative_to(ROOT).as_posix(), read_table(path).rows
        dates = {row.text("added") for row in rows}
        assert "" not in dates, name
        assert all(row.text("source") and row.text("locator") for row in rows), name
        if max(dates) > FIRST_SCORED:
            assert scored[name]["added"] == max(dates), name
    assert set(scored) <= {path.relative_to(ROOT).as_posix() for path in TABLES}
