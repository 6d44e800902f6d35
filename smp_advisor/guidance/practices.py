"""Best practices of a library as data, and the parts of an explanation: steps, references, pitfalls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan

Decision = Literal["used", "not used", "not possible"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Decision on one technique, with the figures behind it."""

    order: int
    """Position in the best practices, from 1."""
    technique: str
    """Key in the library's best practices: ``instance``, ``optimizer_state_sharding``, ``batch``, ..."""
    title: str
    decision: Decision
    because: str
    """Reason: one or two sentences."""
    details: str
    """The same with the figures with and without the technique."""
    trade_off: str
    """Costs of the technique, from the documentation."""
    figures: tuple[tuple[str, str], ...] = ()
    """(label, value with unit) pairs: "memory needed with", "memory needed without", "step time with", ..."""
    source_title: str = ""
    source_url: str = ""
    alternative: Plan | None = None
    """The plan of the comparison: without the technique if it is used, with it otherwise. None if no such plan exists,
    and for the instance, because there the machine changes and not the plan."""
    outcome: Estimate | None = None
    """Estimate of `alternative`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting in which the recommendation differs from a reference configuration."""

    setting: str
    reference: str
    recommended: str
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The nearest of AWS's published configurations, its estimate, and the differences from it."""

    name: str
    summary: str
    fits: bool
    needed_gib: float
    """Memory needed per GPU, from the cost model."""
    differences: tuple[Difference, ...]
    extrapolation: str
    """Distance from the configuration that AWS ran, and the result of AWS's procedure of extrapolation."""
    source_url: str
    assumed: tuple[str, ...] = ()
    """Values that AWS does not publish and that are assumed here, one sentence each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pitfall:
    """A requirement of the plan for the training script, the data pipeline or the job."""

    id: str
    """Id of the check that finds violations (``SMP109``), or a name."""
    severity: Literal["error", "warning", "info"]
    text: str
    source_url: str = ""
    source_title: str = ""


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
