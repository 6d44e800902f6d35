"""The command line of the accuracy benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.constants import constants

from .headlines import headlines
from .judge import figures, judge
from .page import page, with_accuracy
from .residuals import write_residuals
from .sites import Linear
from .table import TableError, read_table, without_column
from .targets import targets
from .timed import Timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judge import Judged

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Score tables of measured runs. The exit status is 2 if a file is not such a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="CSV", help="tables of measured runs, of any kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the page")
    parser.add_argument("--page", type=Path, metavar="MD", help="also write the page to this file")
    parser.add_argument("--readme", type=Path, metavar="MD", help="also replace the section on accuracy of this page")
    parser.add_argument("--residuals", type=Path, metavar="CSV", help="also write every scored row with its prediction")
    chosen = parser.parse_args(arguments)
    try:
        tables = [read_table(path) for path in chosen.tables]
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    judged = judge(table for table in tables if not table.users_code)
    users = judge(table for table in tables if table.users_code)
    if chosen.residuals is not None:
        write_residuals(judged, chosen.residuals)
    result = _result(judged, users)
    # Error of memory without the name of the library.
    named = [table for table in tables if table.kind != "throughput" and not table.users_code]
    unread = figures(judge(without_column(table, "framework") for table in named))
    for name in ("memory_allocated", "memory_total"):
        result["extra"][f"{name}_framework_unread"] = unread[name]
    if chosen.page is not None:
        chosen.page.write_text(page(result), "utf-8")
    if chosen.readme is not None:
        chosen.readme.write_text(with_accuracy(chosen.readme.read_text("utf-8"), result), "utf-8")
    print(json.dumps(result, indent=2) if chosen.json else page(result))
    return 0


def _result(judged: Judged, users: Judged) -> dict[str, Any]:
    """Scores of all tables, and their targets."""
    rows = Timed.of(judged, users)
    point = Linear(rows, {name: constants()[name].value for name in rows.names()}) if rows.rows else None
    result = figures(judged)
    result["headlines"] = {"left_out": {}, "users": {}, "residual": {}} if point is None else headlines(point)
    result["users_code"] = {name: figures(users)[name] for name in ("memory_allocated", "memory_total", "fit")}
    result["targets"] = [asdict(target) for target in targets(result)]
    return result
