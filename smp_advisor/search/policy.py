"""Preferences among plans that fit, as data (``data/policy.toml``)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["Policy", "Published", "policy", "published_for"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Thresholds of the choice."""

    near_best: float
    """Share of the best value within which plans count as equal."""
    technique_gain: float
    """Least gain in speed for which a plan uses one more technique."""
    offloading_techniques: int
    """Number of techniques as which offloading of activations counts."""
    node_gain: float
    """Least gain in speed for which a plan communicates over more nodes."""
    resolution_probability: float
    """Probability from which the faster of two plans of different kinds is distinguishable."""
    first_microbatches: tuple[int, ...]
    """Microbatches of a pipeline that come before all others."""
    slowest_share: float
    """``headroom`` and ``simplicity`` look only at plans with at least this share of the best throughput."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Family of plans that a publication uses for a regime."""

    division: str
    """One of `smp_advisor.costs.intervals.DIVISIONS`."""
    title: str
    source: str


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files("smp_advisor.search").joinpath("data/policy.toml").read_text("utf-8"))


@cache
def policy() -> Policy:
    """The thresholds."""
    entry = _data()["choice"]
    return Policy(**{**entry, "first_microbatches": tuple(entry["first_microbatches"])})


def published_for(library: str, parameters: int) -> Published | None:
    """Publication for a library and a size of model; None if there is none."""
    for entry in _data()["published"]:
        if library in entry["libraries"] and entry["least_parameters"] <= parameters <= entry["most_parameters"]:
            return Published(**{name: entry[name] for name in ("division", "title", "source")})
    return None
