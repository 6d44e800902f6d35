"""How far measured step times lie from predicted ones, by kind of plan."""

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
"""With fewer rows of a kind no 95 % interval can be told from them; those of all kinds are taken."""


def plan_kinds(layout: Layout, cluster: Cluster) -> NDArray[np.str_]:
    """Kind of each plan whose errors are alike, shape (n,): what divides the model, and whether nodes have to talk."""
    divided = np.select(
        [layout.pipeline_parallel_degree > 1, layout.shard_level >= 3, layout.tensor_parallel_degree > 1],
        ["pipeline", "sharded", "tensor"],
        "replicated",
    )
    return np.char.add(divided, ", one node" if cluster.nodes == 1 else ", nodes")


@cache
def _half_widths(column: str) -> dict[str, float]:
    """Of every kind with rows enough."""
    text = resources.files("smp_advisor.costs").joinpath("data/intervals.toml").read_text("utf-8")
    table = {kind: entry for kind, entry in tomllib.loads(text).items() if isinstance(entry, dict)}
    return {
        kind: float(entry[column])
        for kind, entry in table.items()
        if kind == "any" or int(entry["rows"]) >= _FEWEST_ROWS
    }


def step_time_factors(kind: str, *, published_library: bool = False) -> tuple[float, float]:
    """95 % of the measured step times of a kind of plan lie between these factors of the predicted one.

    From published runs that were left out of the fit of the constants (split conformal prediction).

    Parameters
    ----------
    published_library
        Whether the fit has seen other runs of the same training library and publication. A user's script on
        SageMaker is in none: there, all runs of a library are left out together, which gives wider intervals.
    """
    widths = _half_widths("half_width" if published_library else "half_width_elsewhere")
    half = widths.get(kind, widths["any"])
    return math.exp(-half), math.exp(half)
