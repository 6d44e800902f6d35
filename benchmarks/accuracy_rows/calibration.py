"""Pattern search for the constants that bring predicted step times nearest to the measured ones."""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants, overriding

from .judge import judge
from .predict import step_seconds
from .table import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .judge import Scored

__all__ = ["Fit", "fit", "main"]

_FIGURES = ("step_time_a100_h100", "assumed", "step_time_other")
_FLOOR = 0.02
"""Errors below this do not matter: published figures are rounded."""
_PRIOR_WEIGHT = 5e-4
"""What a deviation of one spread from the prior costs, in mean absolute log error."""
_OTHER_WEIGHT = 0.6
"""Weight of a row whose network is assumed, or of a GPU that large models are not trained on."""


class Fit:
    """The rows, and how far predictions are from them."""

    def __init__(self, scored: Mapping[str, Sequence[Scored]]) -> None:
        self.rows = [(figure, one) for figure in _FIGURES for one in scored[figure] if one.run is not None]
        sources = Counter(self._source(one) for _, one in self.rows)
        # Many rows of one publication are not as many facts.
        self.weights = np.array(
            [
                (1.0 if figure == _FIGURES[0] else _OTHER_WEIGHT) / math.sqrt(sources[self._source(one)])
                for figure, one in self.rows
            ]
        )
        self.measured = np.array([one.measured for _, one in self.rows])

    @staticmethod
    def _source(one: Scored) -> tuple[str, str]:
        return one.row.text("framework"), one.row.text("gpu")

    def errors(self, values: Mapping[str, float]) -> np.ndarray:
        """Logarithm of predicted over measured of every row, shape (rows,)."""
        with overriding(values):
            predicted = [sum(step_seconds(one.run).values()) for _, one in self.rows if one.run is not None]
        return np.log(np.array(predicted) / self.measured)

    def loss(self, values: Mapping[str, float]) -> float:
        """Weighted mean absolute error, and the cost of leaving the priors."""
        found = np.sqrt(self.errors(values) ** 2 + _FLOOR**2)
        known = constants()
        away = sum(
            (math.log(value / prior) / known[name].spread) ** 2
            for name, value in values.items()
            if (prior := known[name].prior) is not None
        )
        return float((self.weights * found).sum() / self.weights.sum()) + _PRIOR_WEIGHT * away


def fit(rows: Fit, start: Mapping[str, float], *, step: float = 0.2, least_step: float = 0.01) -> dict[str, float]:
    """Move one constant at a time by a factor while that helps, then by smaller ones."""
    values = dict(start)
    best = rows.loss(values)
    while step >= least_step:
        before = best
        for name in values:
            for factor in (1 + step, 1 / (1 + step)):
                tried = {**values, name: values[name] * factor}
                if (loss := rows.loss(tried)) < best:
                    best, values = loss, tried
        print(f"step {step:.3f}: {best:.5f}", flush=True)
        if before - best < 1e-4:  # noqa: PLR2004
            step /= 2
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print and, if asked, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="CSV", help="tables of measured step times")
    parser.add_argument("--least-step", type=float, default=0.01, help="factor below which no constant is moved")
    parser.add_argument("--write", action="store_true", help="put the values into the table of constants")
    chosen = parser.parse_args(arguments)
    rows = Fit(judge([read_table(path) for path in chosen.tables]).scored)
    known = constants()
    seen = {one.row.text("gpu").upper() for _, one in rows.rows}
    start = {
        name: one.value
        for name, one in known.items()
        if one.prior is not None
        and name.split(".")[0] in {"gpu", "time", "communication"}
        and (not name.startswith("gpu.") or any(gpu.startswith(name.split(".")[2].upper()) for gpu in seen))
    }
    print(f"{len(rows.rows)} rows, {len(start)} constants, loss {rows.loss(start):.5f}")
    values = fit(rows, start, least_step=chosen.least_step)
    for name, value in values.items():
        print(f"{name:40s} {known[name].prior or 0:10.4g} -> {value:10.4g}")
    if chosen.write:
        _write(values)
    return 0


def _write(values: Mapping[str, float]) -> None:
    """Replace the values where they stand, so that comments and order stay."""
    path = Path(str(resources.files("smp_advisor.costs").joinpath("data/constants.toml")))
    text = path.read_text("utf-8")
    for name, value in values.items():
        room, entry, *gpu = name.split(".")
        start = text.index(f"[{room}.{entry}]")
        end = text.find("\n\n", start)
        section = text[start:end]
        pattern = rf"\b{gpu[0]} = [0-9.e-]+" if gpu else r"\bvalue = [0-9.e-]+"
        label = gpu[0] if gpu else "value"
        text = text[:start] + re.sub(pattern, f"{label} = {value:.3g}", section, count=1) + text[end:]
    path.write_text(text, "utf-8")
