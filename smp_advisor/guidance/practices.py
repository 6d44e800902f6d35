"""Best practices of a library as data: order, titles, trade-offs, sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library

__all__ = ["Practice", "order", "practice", "subset_tip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Practice:
    """Documentation of one technique, restated."""

    technique: str
    title: str
    trade_off: str
    source_title: str
    source_url: str
    date: str
    """State of the page (ISO 8601)."""
    argument: str
    """Name of the argument for or against it (guidance/explanation.py); the technique's own name by default."""


@cache
def _practices(library: str) -> dict[str, Any]:
    return get_library(library).table("practices.toml")


def order(library: str = DEFAULT_LIBRARY) -> tuple[str, ...]:
    """Techniques of a library in the order of its best practices."""
    return tuple(_practices(library)["order"])


@cache
def practice(technique: str, library: str = DEFAULT_LIBRARY) -> Practice:
    """The practice of a technique, by its key."""
    page = _practices(library)
    entry = next(entry for entry in page["practice"] if entry["technique"] == technique)
    fields = {"argument": technique, **{name: value for name, value in entry.items() if name != "page"}}
    return Practice(source_url=page["base_url"] + entry["page"], date=page["date"], **fields)


def subset_tip(library: str) -> str:
    """The documentation's tip against more techniques than needed, as a clause; empty if there is none."""
    return str(_practices(library).get("subset_tip", {}).get("text", ""))
