"""The command line of the accuracy benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import FIGURES, by_source, first_scores, rows_of, score, sources_once
from .judge import figures, judge
from .own_run import after_runs
from .page import page, with_accuracy
from .residuals import write_residuals
from .table import TableError, read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judge import Judged

__all__ = ["VALIDATION", "main", "tables_of_repository"]

VALIDATION = Path(__file__).parents[2] / "validation"
_OTHER_COLUMNS = {"collectives", "one_gpu"}


def tables_of_repository() -> list[Path]:
    """The tables of measured runs in the repository."""
    return sorted(path for path in VALIDATION.glob("*/*.csv") if path.parent.name not in _OTHER_COLUMNS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Score tables of measured runs. The exit status is 2 if a file is not such a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, metavar="CSV", help="tables of measured runs; default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the page")
    parser.add_argument("--page", type=Path, metavar="MD", help="also write the page to this file")
    parser.add_argument("--readme", type=Path, metavar="MD", help="also replace the section on accuracy of this page")
    parser.add_argument("--residuals", type=Path, metavar="CSV", help="also write every scored row with its interval")
    parser.add_argument("--own-runs", action="store_true", help="also calibrate with a run of each source (a minute)")
    chosen = parser.parse_args(arguments)
    try:
        tables = [read_table(path) for path in chosen.tables or tables_of_repository()]
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    judged = judge(table for table in tables if not table.users_code)
    users = judge(table for table in tables if table.users_code)
    if chosen.residuals is not None:
        write_residuals([judged, users], chosen.residuals)
    result = _result(judged, users)
    result["first"] = first_scores(tables, VALIDATION / "first_scores.csv")
    result["own_runs"] = after_runs(judged, users) if chosen.own_runs or chosen.page is not None else {}
    if chosen.page is not None:
        chosen.page.write_text(page(result), "utf-8")
    if chosen.readme is not None:
        chosen.readme.write_text(with_accuracy(chosen.readme.read_text("utf-8"), result), "utf-8")
    print(json.dumps(result, indent=2) if chosen.json else page(result))
    return 0


def _result(judged: Judged, users: Judged) -> dict[str, Any]:
    """Scores of all tables as plain data."""
    result = figures(judged)
    for title in FIGURES:
        rows = rows_of(judged, title)
        result[title] = {
            "all": _plain(rows),
            "by_source": {
                name: _plain(of) | {"added": of[0].row.text("added")} for name, of in by_source(rows).items()
            },
            "sources_once": sources_once(rows),
            "users": _plain(rows_of(users, title)),
            "public": _plain([row for row in rows if row.is_public]),
        }
    return result


def _plain(rows: list[Any]) -> dict[str, Any]:
    found = score(rows)
    return {} if found is None else asdict(found)
