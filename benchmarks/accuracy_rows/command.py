"""The command line of the accuracy benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .judge import figures, judge
from .page import page
from .report import lines
from .residuals import write_residuals
from .table import TableError, read_table, without_column

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Score tables of measured runs. The exit status is 2 if a file is not such a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="CSV", help="tables of measured runs, of any kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--page", type=Path, metavar="MD", help="also write the scores as a documentation page")
    parser.add_argument("--residuals", type=Path, metavar="CSV", help="also write every scored row with its prediction")
    chosen = parser.parse_args(arguments)
    try:
        tables = [read_table(path) for path in chosen.tables]
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    judged = judge(table for table in tables if not table.users_code)
    if chosen.residuals is not None:
        write_residuals(judged, chosen.residuals)
    result = figures(judged)
    # Error of memory without the name of the library.
    unread = figures(
        judge(
            [
                without_column(table, "framework")
                for table in tables
                if table.kind != "throughput" and not table.users_code
            ]
        )
    )
    for name in ("memory_allocated", "memory_total"):
        result["extra"][f"{name}_framework_unread"] = unread[name]
    if chosen.page is not None:
        chosen.page.write_text(page(result), "utf-8")
    print(json.dumps(result, indent=2) if chosen.json else "\n".join(lines(result)))
    return 0
