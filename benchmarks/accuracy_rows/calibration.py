"""The command that fits the constants of the cost model to measured runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.cluster.table import instances
from smp_advisor.core.files import data_file
from smp_advisor.costs.constants import constants

from .judge import judge
from .sites import Linear, fit
from .spreads import kind_correlation, spread_table, without_parts
from .table import TableError, read_table
from .timed import Timed
from .write import write_constants, write_draws, write_intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judge import Scored

__all__ = ["main", "memory_errors"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the constants, print them and optionally write them. The exit status is 2 if a file is not a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="CSV", help="tables of measured step times")
    parser.add_argument("--write", action="store_true", help="write constants, joint draws and intervals to their data")
    parser.add_argument("--keep", action="store_true", help="do not fit: only evaluate the present constants")
    chosen = parser.parse_args(arguments)
    try:
        tables = [read_table(path) for path in chosen.tables]
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    tuned = judge(table for table in tables if not table.users_code)
    rows = Timed.of(tuned, judge(table for table in tables if table.users_code))
    start = {name: constants()[name].value for name in rows.names()}
    errors = memory_errors([*tuned.scored["memory_allocated"], *tuned.scored["memory_total"]])
    _print_changes(errors)
    if chosen.write and not chosen.keep:
        write_constants(errors)
    if not rows.rows:
        return 0
    point = Linear(rows, start) if chosen.keep else fit(rows, start)
    _print_changes(point.values)
    left = point.left_out()[point.fitted]
    middle, high = 100 * np.quantile(np.abs(left), (0.5, 0.9))
    print(f"{len(left)} rows with their source left out of the fit: median {middle:.1f} %, p90 {high:.1f} %")
    if chosen.write:
        if not chosen.keep:
            write_constants(point.values)
        write_draws(list(point.values), point.solve(point.fitted).covariance)
        runs = point.runs_left_out()
        offered = {word for instance in instances() for word in instance.gpu.split()}
        gpus = sorted(offered & {row.row.text("gpu").split("-")[0].upper() for row in rows.rows})
        everything = float(data_file("costs", "intervals")["composition"]["everything"])
        plain = without_parts(runs, rows.deviations(), everything)
        correlation = kind_correlation(plain.take(point.fitted), rows.sites[point.fitted])
        write_intervals(spread_table(plain, everything), correlation, gpus)
    return 0


def _print_changes(values: dict[str, float]) -> None:
    for name, value in values.items():
        entry = constants()[name]
        prior = "" if entry.prior is None else f"  prior {entry.prior:.4g}"
        print(f"{name:44s} {entry.value:10.4g} -> {value:10.4g}{prior}")


_MEMORY_ERRORS = ("state", "dynamic", "reserve", "context_gib")


def memory_errors(scored: Sequence[Scored]) -> dict[str, float]:
    """Error constants of memory, scaled together until 95 % of the rows are within their intervals.

    Their proportions are estimates: 155 rows of a dozen publications cannot determine them.
    """
    if not scored:
        return {}
    scale = float(np.quantile([row.half_widths_off for row in scored], 0.95))
    names = [f"memory.error_{name}" for name in _MEMORY_ERRORS]
    return {name: constants()[name].value * scale for name in names}
