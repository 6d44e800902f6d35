"""Memory, time and price of a plan."""

from __future__ import annotations

from smp_advisor.costs.estimate import CATEGORIES, Estimate, Memory, StageMemory, StepTime
from smp_advisor.costs.evaluate import estimate, estimate_many

__all__ = ["CATEGORIES", "Estimate", "Memory", "StageMemory", "StepTime", "estimate", "estimate_many"]
