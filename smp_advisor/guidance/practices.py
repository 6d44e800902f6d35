"""AWS's best practices as data: order, titles, trade-offs, sources."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

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
def _file(library: str = "smp-v1") -> dict[str, Any]:
    name = "practices.toml" if library == "smp-v1" else f"practices_{library}.toml"
    return tomllib.loads((files("smp_advisor.guidance") / "data" / name).read_text(encoding="utf-8"))


def order(library: str = "smp-v1") -> tuple[str, ...]:
    """Techniques of a library in the order in which its best practices go through them."""
    return ORDER if library == "smp-v1" else tuple(_file(library)["order"])


@cache
def practice(technique: str, library: str = "smp-v1") -> Practice:
    """The practice of a technique, by its key."""
    stated = _file(library)
    entry = next(one for one in stated["practice"] if one["technique"] == technique)
    fields = {name: value for name, value in entry.items() if name != "page"}
    return Practice(source_url=stated["base_url"] + entry["page"], date=stated["date"], **fields)


def subset_tip() -> str:
    """AWS's tip against more techniques than needed, as a clause."""
    return str(_file()["subset_tip"]["text"])
