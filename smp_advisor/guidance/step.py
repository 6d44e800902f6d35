"""Values of an explanation: one step a technique, in the order of AWS's best practices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan

__all__ = ["Decision", "Difference", "Pitfall", "Reference", "Step"]

Decision = Literal["used", "not used", "not possible"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One technique: used or not, and the figures that decided it."""

    order: int
    """Place in the best practices, from 1."""
    technique: str
    """Key, as the library's best practices list them: ``instance``, ``optimizer_state_sharding``, ``batch``, ..."""
    title: str
    decision: Decision
    because: str
    """A few sentences with the figures with and without."""
    trade_off: str
    """What the technique costs, from the documentation."""
    figures: tuple[tuple[str, str], ...] = ()
    """(label, value with unit) pairs: "memory needed with", "memory needed without", "step time with", ..."""
    source_title: str = ""
    source_url: str = ""
    alternative: Plan | None = None
    """The plan that the figures compare with: without the technique where it is used, with it where it is not. None
    where no such plan exists, and for the instance, where the plan stays and the machine changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One setting in which the recommendation differs from a reference configuration."""

    setting: str
    reference: str
    recommended: str
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The nearest of AWS's published configurations, how it fares by the cost model and what differs."""

    name: str
    summary: str
    fits: bool
    needed_gib: float
    """What a GPU must have for it to run, by the cost model."""
    differences: tuple[Difference, ...]
    extrapolation: str
    """How far the recommendation is from what AWS tested, and how to move there (batch first, then TP)."""
    source_url: str
    assumed: tuple[str, ...] = ()
    """What AWS does not publish of the configuration and was filled in, one sentence each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pitfall:
    """What this plan demands of the training script or the data pipeline."""

    id: str
    """The check that finds it (``SMP109``)."""
    severity: Literal["error", "warning", "info"]
    text: str
    source_url: str = ""
    source_title: str = ""
