"""The reader of the table of GPU boards."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

__all__ = ["board_rows"]


@cache
def board_rows() -> dict[str, dict[str, str]]:
    """Rows of the table, by the name of the board in the instance table."""
    table = (files("smp_advisor.cluster") / "data" / "gpus.csv").read_text(encoding="utf-8")
    return {row["gpu"]: row for row in csv.DictReader(table.splitlines())}
