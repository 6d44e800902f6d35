"""AWS's best practices as data: order, titles, trade-offs, sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from smp_advisor.libraries.registry import DEFAULT_LIBRARY, get_library

__all__ = ["ORDER", "Practice", "order", "practice", "subset_tip"]

ORDER = (
    "instance",
    "optimizer_state_sharding",
    "activation_checkpointing",
    "tensor_parallelism",
    "pipeline_parallelism",
    "offloading",
    "batch",
)
"""Techniques of SMP v1 in the order in which AWS advises to go through them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Practice:
    """What the documentation says of one technique, restated."""

    technique: str
    title: str
    trade_off: str
    source_title: str
    source_url: str
    date: str
    """State of the page (ISO 8601)."""


@cache
def _file(library: str = DEFAULT_LIBRARY) -> dict[str, Any]:
    return get_library(library).table("practices.toml")


def order(library: str = DEFAULT_LIBRARY) -> tuple[str, ...]:
    """Techniques of a library in the order in which its best practices go through them."""
    return ORDER if library == DEFAULT_LIBRARY else tuple(_file(library)["order"])


@cache
def practice(technique: str, library: str = DEFAULT_LIBRARY) -> Practice:
    """The practice of a technique, by its key."""
    stated = _file(library)
    entry = next(one for one in stated["practice"] if one["technique"] == technique)
    fields = {name: value for name, value in entry.items() if name != "page"}
    return Practice(source_url=stated["base_url"] + entry["page"], date=stated["date"], **fields)


def subset_tip() -> str:
    """AWS's tip against more techniques than needed, as a clause."""
    return str(_file()["subset_tip"]["text"])
