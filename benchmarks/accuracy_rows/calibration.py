"""Fit of the constants of the step time to measured runs, and the remaining error."""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants, overriding
from smp_advisor.costs.intervals import plan_kinds

from .judge import judge
from .predict import step_seconds
from .quick import quick_lines
from .sites import Linear
from .table import read_table
from .timed import Timed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .judge import Scored

__all__ = ["Fit", "fit", "main"]

_FIGURES = ("step_time_a100_h100", "assumed", "step_time_other")
_FLOOR = 0.02
"""Errors below this value do not matter because published figures are rounded."""
_PRIOR_WEIGHT = 5e-4
"""Cost of a deviation of one spread from the prior, in mean absolute log error."""
_OTHER_WEIGHT = 0.6
"""Weight of a row with an assumed network, or with a GPU that is unusual for large models."""

_MIN_ROWS_OF_QUANTILE = 40
"""Minimum number of rows for an empirical 95 % quantile."""


class Fit:
    """The rows of a fit, with their weights and errors."""

    def __init__(self, scored: Mapping[str, Sequence[Scored]]) -> None:
        self.rows = [(figure, row) for figure in _FIGURES for row in scored.get(figure, ()) if row.run is not None]
        sources = Counter(self._source(row) for _, row in self.rows)
        # Rows of one publication are not independent.
        self.weights = np.array(
            [
                (1.0 if figure == _FIGURES[0] else _OTHER_WEIGHT) / math.sqrt(sources[self._source(row)])
                for figure, row in self.rows
            ]
        )
        self.measured = np.array([row.measured for _, row in self.rows])

    @staticmethod
    def _source(scored: Scored) -> tuple[str, str]:
        return scored.row.text("framework"), scored.row.text("gpu")

    def errors(self, values: Mapping[str, float]) -> np.ndarray:
        """Logarithm of predicted over measured of every row, shape (rows,)."""
        with overriding(values):
            predicted = [sum(step_seconds(row.run).values()) for _, row in self.rows if row.run is not None]
        return np.log(np.array(predicted) / self.measured)

    def loss(self, values: Mapping[str, float]) -> float:
        """Weighted mean absolute error plus the cost of deviations from the priors."""
        absolute = np.sqrt(self.errors(values) ** 2 + _FLOOR**2)
        table = constants()
        deviation = sum(
            (math.log(value / prior) / table[name].spread) ** 2
            for name, value in values.items()
            if (prior := table[name].prior) is not None
        )
        return float((self.weights * absolute).sum() / self.weights.sum()) + _PRIOR_WEIGHT * deviation


def fit(rows: Fit, start: Mapping[str, float], *, rounds: int = 12) -> dict[str, float]:
    """Fit by Gauss-Newton steps on the logarithms of the constants. Row weights make absolute errors count."""
    values, damping = dict(start), 1e-2
    best = rows.loss(values)
    for turn in range(rounds):
        errors, jacobian = rows.errors(values), _jacobian(rows, values)
        before = best
        for _ in range(5):
            moves = _solve(rows, values, errors, jacobian, damping=damping)
            candidate = {
                name: value * math.exp(float(np.clip(move, -0.5, 0.5)))
                for (name, value), move in zip(values.items(), moves, strict=True)
            }
            if (loss := rows.loss(candidate)) < best:
                best, values, damping = loss, candidate, damping / 3
                break
            damping *= 4
        print(f"round {turn + 1}: {best:.5f}", flush=True)
        if before - best < 2e-5:
            break
    return values


def _jacobian(rows: Fit, values: Mapping[str, float], step: float = 0.03) -> np.ndarray:
    """Derivative of every row's error by the logarithm of every constant, shape (rows, constants)."""
    columns = []
    for name, value in values.items():
        up = rows.errors({**values, name: value * math.exp(step)})
        down = rows.errors({**values, name: value * math.exp(-step)})
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=1)


def _solve(
    rows: Fit,
    values: Mapping[str, float],
    errors: np.ndarray,
    jacobian: np.ndarray,
    *,
    damping: float = 0.0,
    used: np.ndarray | None = None,
    turns: int = 8,
) -> np.ndarray:
    """Changes of the logarithms of the constants that minimize the loss of the rows `used`, to first order."""
    table = constants()
    spread = np.array([table[name].spread for name in values])
    deviation = np.array([math.log(value / (table[name].prior or value)) for name, value in values.items()])
    weights = rows.weights if used is None else rows.weights * used
    weights = weights / weights.sum()
    pull = 2 * _PRIOR_WEIGHT / spread**2
    moves = np.zeros(len(values))
    for _ in range(turns):
        remaining = errors + jacobian @ moves
        row_weights = weights / np.sqrt(remaining**2 + _FLOOR**2)
        matrix = jacobian.T @ (row_weights[:, None] * jacobian) + np.diag(pull * (1 + damping))
        matrix += damping * np.diag(np.diag(matrix))
        moves = np.linalg.solve(matrix, -(jacobian.T @ (row_weights * errors)) - pull * deviation)
    return moves


def left_out_errors(rows: Fit, values: Mapping[str, float], *, folds: int = 10) -> np.ndarray:
    """Error of every row with constants fitted to other rows, shape (rows,).

    Each fold omits every tenth row. The fit without a fold is computed from the fit to all rows, to first order.
    """
    fold = np.random.default_rng(0).permutation(len(rows.rows)) % folds
    return _left_out(rows, values, fold)


def errors_elsewhere(rows: Fit, values: Mapping[str, float]) -> np.ndarray:
    """Error of every row with constants fitted without any row of its training library, shape (rows,).

    This is the error for users whose script and cluster are in no publication.
    """
    libraries = np.array([row.row.text("framework") for _, row in rows.rows])
    return _left_out(rows, values, np.unique(libraries, return_inverse=True)[1])


def _left_out(rows: Fit, values: Mapping[str, float], fold: np.ndarray) -> np.ndarray:
    errors, jacobian = rows.errors(values), _jacobian(rows, values)
    folds = np.unique(fold)
    if len(folds) < 2:  # no other rows to fit
        return errors
    result = np.empty_like(errors)
    for number in folds:
        moves = _solve(rows, values, errors, jacobian, used=(fold != number).astype(float))
        result[fold == number] = (errors + jacobian @ moves)[fold == number]
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the constants, print them and optionally write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="CSV", help="tables of measured step times")
    parser.add_argument("--write", action="store_true", help="write the values to the table of constants")
    parser.add_argument("--keep", action="store_true", help="do not fit: only evaluate the present constants")
    parser.add_argument(
        "--quick", action="store_true", help="do not fit: report users' code on AWS and sources left out of the fit"
    )
    chosen = parser.parse_args(arguments)
    tables = [read_table(path) for path in chosen.tables]
    tuned = judge(table for table in tables if not table.users_code)
    if chosen.quick:
        timed = Timed.of(tuned, judge(table for table in tables if table.users_code))
        start = {name: constants()[name].value for name in timed.names()}
        print("\n".join(quick_lines(Linear(timed, start))))
        return 0
    scored = tuned.scored
    errors = _memory_errors([*scored["memory_allocated"], *scored["memory_total"]])
    for name, value in errors.items():
        print(f"{name:40s} {constants()[name].value:10.4g} -> {value:10.4g}")
    if chosen.write and not chosen.keep:
        _write(errors)
    rows = Fit(scored)
    if not rows.rows:
        return 0
    table = constants()
    measured_gpus = {row.row.text("gpu").upper() for _, row in rows.rows}
    start = {
        name: constant.value
        for name, constant in table.items()
        if constant.prior is not None
        and name.split(".")[0] in {"gpu", "time", "communication"}
        and (not name.startswith("gpu.") or any(gpu.startswith(name.split(".")[2].upper()) for gpu in measured_gpus))
    }
    print(f"{len(rows.rows)} rows, {len(start)} constants, loss {rows.loss(start):.5f}")
    values = start if chosen.keep else fit(rows, start)
    for name, value in values.items():
        print(f"{name:40s} {table[name].prior or 0:10.4g} -> {value:10.4g}")
    left_out, elsewhere = left_out_errors(rows, values), errors_elsewhere(rows, values)
    print(_report(rows, left_out, elsewhere))
    if chosen.write:
        if not chosen.keep:
            _write(values)
        _write_intervals(rows, left_out, elsewhere)
    return 0


_MEMORY_ERRORS = ("state", "dynamic", "reserve", "context_gib")


def _memory_errors(scored: Sequence[Scored]) -> dict[str, float]:
    """Error constants of memory, scaled together until 95 % of the rows are within their intervals.

    Their proportions are estimates: 155 rows of a dozen publications cannot determine them.
    """
    if not scored:
        return {}
    scale = float(np.quantile([row.half_widths_off for row in scored], 0.95))
    names = [f"memory.error_{name}" for name in _MEMORY_ERRORS]
    return {name: constants()[name].value * scale for name in names}


def _kinds(rows: Fit) -> list[str]:
    return [str(plan_kinds(row.run.layout, row.run.cluster)[0]) if row.run is not None else "" for _, row in rows.rows]


def _intervals(rows: Fit, left_out: np.ndarray) -> dict[str, tuple[float, int]]:
    """Half width of the 95 % interval and number of rows by kind of plan."""
    kinds = np.array(_kinds(rows))
    by_kind = {"any": left_out} | {str(kind): left_out[kinds == kind] for kind in np.unique(kinds)}
    return {kind: (_half_width(np.abs(values)), len(values)) for kind, values in by_kind.items()}


def _half_width(absolute: np.ndarray) -> float:
    """Upper limit of another error of the same kind with 95 % probability.

    This is the 95 % quantile, or for few rows the conformal quantile (Vovk et al. 2005, section 4.2).
    """
    if len(absolute) >= _MIN_ROWS_OF_QUANTILE:
        return float(np.quantile(absolute, 0.95))
    level = min(math.ceil(0.95 * (len(absolute) + 1)) / len(absolute), 1.0)
    return float(np.quantile(absolute, level, method="higher"))


def _coverage(errors: np.ndarray) -> float:
    """Share of the rows within the interval of the other rows of their kind."""
    return float(np.mean([abs(error) <= _half_width(np.abs(np.delete(errors, i))) for i, error in enumerate(errors)]))


def _report(rows: Fit, left_out: np.ndarray, elsewhere: np.ndarray) -> str:
    kinds, outside = np.array(_kinds(rows)), _intervals(rows, elsewhere)
    lines = [
        "rows left out of the fit, and the coverage of their intervals; elsewhere: all rows of the library left out:"
    ]
    for kind, (half, count) in sorted(_intervals(rows, left_out).items()):
        chosen = left_out if kind == "any" else left_out[kinds == kind]
        share = f"{100 * _coverage(chosen):5.1f} %" if count > 1 else "    -"
        middle = 100 * float(np.median(np.abs(chosen)))
        lines.append(
            f"  {kind:24s} {count:4d} rows  median {middle:5.1f} %  +-{100 * half:5.1f} %  within {share}"
            f"  elsewhere +-{100 * outside[kind][0]:5.1f} %"
        )
    return "\n".join(lines)


def _write_intervals(rows: Fit, left_out: np.ndarray, elsewhere: np.ndarray) -> None:
    path = Path(str(resources.files("smp_advisor.costs").joinpath("data/intervals.toml")))
    text = [
        "# Half widths of 95 % prediction intervals of the step time, as natural logarithms of predicted over",
        "# measured, by kind of plan: of rows left out of the fit, and of rows whose training library is (elsewhere).",
        "# Written by benchmarks/calibrate.py from published runs.",
        f'date = "{datetime.now(UTC).date().isoformat()}"',
        "",
    ]
    kinds, outside = np.array(_kinds(rows)), _intervals(rows, elsewhere)
    for kind, (half, count) in sorted(_intervals(rows, left_out).items()):
        chosen = np.ones(len(kinds), dtype=bool) if kind == "any" else kinds == kind
        median, median_elsewhere = (float(np.median(np.abs(errors[chosen]))) for errors in (left_out, elsewhere))
        # With few rows both estimates are inexact. The interval elsewhere is never narrower.
        text += [f'["{kind}"]', f"half_width = {half:.3f}", f"half_width_elsewhere = {max(half, outside[kind][0]):.3f}"]
        text += [f"rows = {count}", f"median_error = {median:.3f}", f"median_error_elsewhere = {median_elsewhere:.3f}"]
        text += [f"within = {_coverage(left_out[chosen]):.3f}", ""]
    path.write_text("\n".join(text).rstrip() + "\n", "utf-8")


def _write(values: Mapping[str, float]) -> None:
    """Replace the values in the table, without changes to comments and order."""
    path = Path(str(resources.files("smp_advisor.costs").joinpath("data/constants.toml")))
    text = path.read_text("utf-8")
    for name, value in values.items():
        group, entry, *gpu = name.split(".")
        start = text.index(f"[{group}.{entry}]")
        end = text.find("\n\n", start)
        section = text[start:end]
        pattern = rf"\b{gpu[0]} = [0-9.e-]+" if gpu else r"\bvalue = [0-9.e-]+"
        label = gpu[0] if gpu else "value"
        text = text[:start] + re.sub(pattern, f"{label} = {value:.3g}", section, count=1) + text[end:]
    path.write_text(text, "utf-8")
