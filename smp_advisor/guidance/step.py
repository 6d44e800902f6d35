"""Parts of an explanation: steps, differences from a reference configuration, pitfalls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan

__all__ = ["Decision", "Difference", "Pitfall", "Reference", "Step"]

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
