"""Figures of a run in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance import ranges

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.model import Model

__all__ = ["time_and_cost"]


def time_and_cost(model: Model, estimate: Estimate) -> tuple[str, str]:
    """Days and USD of the run with their intervals; without tokens, the throughput and the cost per million."""
    return (
        ranges.run_time(estimate) or ranges.token_rate(estimate),
        ranges.run_cost(estimate) or ranges.cost_per_million(model, estimate),
    )
