"""Results of the calibration in the data files of the cost model."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.constants import constants
from smp_advisor.costs.uncertainty import DRAWS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .spreads import Spread

__all__ = ["write_constants", "write_draws", "write_intervals"]


def _path(name: str) -> Path:
    return Path(str(resources.files("smp_advisor.costs").joinpath("data", name)))


def write_constants(values: Mapping[str, float]) -> None:
    """Replace values in the table of constants, without changes to comments and order."""
    path = _path("constants.toml")
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


def write_draws(fitted: Sequence[str], covariance: NDArray[np.float64]) -> None:
    """Write joint draws of the logarithms of constants about their values, in pairs of opposite sign.

    Assumed constants with a spread, which no run determines, are drawn from their priors.
    """
    assumed = {
        name: entry.spread
        for name, entry in constants().items()
        if entry.assumed and entry.prior is not None and not name.startswith("gpu.")
    }
    values, vectors = np.linalg.eigh(covariance)
    names = [*fitted, *assumed]
    root = np.zeros((len(names), len(names)))
    root[: len(fitted), : len(fitted)] = vectors * np.sqrt(np.maximum(values, 0.0))
    root[len(fitted) :, len(fitted) :] = np.diag(list(assumed.values()))
    half = np.random.default_rng(0).standard_normal((DRAWS // 2, len(names))) @ root.T
    lines = [
        "# Joint draws of the fitted constants: logarithms of drawn over committed values, one row per draw.",
        f"# Written by benchmarks/calibrate.py on {datetime.now(UTC).date().isoformat()}.",
        ",".join(names),
        *(",".join(f"{value:.3f}" for value in row) for row in np.concatenate([half, -half])),
    ]
    _path("draws.csv").write_text("\n".join(lines) + "\n", "utf-8")


def write_intervals(groups: Mapping[str, Mapping[str, Spread]], correlation: float, gpus: Sequence[str]) -> None:
    """Write spreads by group of stacks and kind of plan; what intervals are composed of stays as it is."""
    text = _path("intervals.toml").read_text("utf-8")
    head = re.sub(r"kind_correlation = [0-9.]+", f"kind_correlation = {correlation:.2f}", text.partition("[host.")[0])
    lines = [re.sub(r"measured = \[.*?\]", f"measured = {json.dumps(list(gpus))}", head).rstrip(), ""]
    for group, kinds in groups.items():
        for kind, entry in kinds.items():
            lines += [
                f'[{group}."{kind}"]',
                f"source_spread = {entry.source_spread:.3f}",
                f"run_spread = {entry.run_spread:.3f}",
                f"rows = {entry.rows}",
                f"sources = {entry.sources}",
                f"median_error = {entry.median_error:.3f}",
                "",
            ]
    _path("intervals.toml").write_text("\n".join(lines).rstrip() + "\n", "utf-8")
