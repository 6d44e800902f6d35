"""Intervals of measured step times around predicted ones, by kind of plan."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout

__all__ = ["plan_kinds", "step_time_factors"]

_FEWEST_ROWS = 19
"""Minimum number of rows for a 95 % interval. A kind with fewer uses the interval of all kinds."""


def plan_kinds(layout: Layout, cluster: Cluster) -> NDArray[np.str_]:
    """Kind of each plan, shape (n,): the division of the model, and one or several nodes. Kinds have similar errors."""
    divided = np.select(
        [layout.pipeline_parallel_degree > 1, layout.shard_level >= 3, layout.tensor_parallel_degree > 1],
        ["pipeline", "sharded", "tensor"],
        "replicated",
    )
    return np.char.add(divided, ", one node" if cluster.nodes == 1 else ", nodes")


@cache
def _half_widths(column: str) -> dict[str, float]:
    """Half width of every kind with enough rows."""
    text = resources.files("smp_advisor.costs").joinpath("data/intervals.toml").read_text("utf-8")
    table = {kind: entry for kind, entry in tomllib.loads(text).items() if isinstance(entry, dict)}
    return {
        kind: float(entry[column])
        for kind, entry in table.items()
        if kind == "any" or int(entry["rows"]) >= _FEWEST_ROWS
    }


def step_time_factors(kind: str, *, published_library: bool = False) -> tuple[float, float]:
    """Factors of the predicted step time between which 95 % of the measured ones of a kind of plan are.

    They come from published runs outside the fit of the constants (split conformal prediction).

    Parameters
    ----------
    published_library
        Whether the fit included other runs of the same training library and publication. This is never the case for a
        user's script on SageMaker. Its wider intervals come from fits without any run of the library.
    """
    widths = _half_widths("half_width" if published_library else "half_width_elsewhere")
    half = widths.get(kind, widths["any"])
    return math.exp(-half), math.exp(half)
