"""A better plan for the rest of a run, if it is better by more than its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.predictive import step_time_draws
from smp_advisor.libraries.library import get_library
from smp_advisor.wording import between, fits, number

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan

_DAY = 86_400
_TAILS = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Another plan from the next checkpoint on. `cell` resumes the run with it."""

    advice: Advice
    """The calibrated advice."""
    plan: Plan
    estimate: Estimate
    days: float
    """Days saved, less those of the change itself."""
    days_range: tuple[float, float]
    """95 % interval."""
    usd: float | None
    """USD saved; None if the price is unknown."""
    checkpoints: str = ""
    """Location of the run's checkpoints; empty if it is unknown."""

    def cell(self, **options: Any) -> str:
        """The cell that resumes the run with the plan, from its checkpoints. Stop the run first."""
        return self.advice.cell(
            plan=self.plan, **({"checkpoints": self.checkpoints} if self.checkpoints else {}) | options
        )

    def __str__(self) -> str:
        money = "" if self.usd is None else f", {number(self.usd)} USD"
        place = "" if self.checkpoints else " The run's checkpoints were not found: pass offer.cell(checkpoints=)."
        return (
            f"Change at the next checkpoint: saves {number(self.days)} days{money} ({between(self.days_range)} days)."
            f" The plan: {self.plan!r}.{place}"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 (IPython's signature)
        printer.text(str(self))


def offer_of(advice: Advice, plan: Plan, steps: int, *, checkpoints: str = "") -> Offer | None:
    """The recommended plan of a calibrated advice instead of the plan of a run, for its remaining steps.

    A plan counts if it resumes from the same checkpoints: of the same library, whose script is PyTorch's distributed
    checkpoints (SMP v1's are divided as its plan is), with the same global batch. It is better for certain if the lower
    end of what it saves, less the start of another job and half a checkpoint's interval, is above 0.
    """
    choice = advice.recommended
    better = choice.plan
    if better == plan or better.library != plan.library or get_library(plan.library).script != "torch":
        return None
    now = estimate(advice.model, advice.cluster, choice.job, plan)
    then = estimate(advice.model, advice.cluster, choice.job, better)
    if then.global_batch_size != now.global_batch_size or not fits(then, advice.min_fit_probability):
        return None
    draws = step_time_draws(advice.model, advice.cluster, choice.job, [plan, better])
    ratios = draws[:, 1] / draws[:, 0]
    middle = then.step_seconds / now.step_seconds
    # The middle of the draws leaves out the allocator's time near full memory, which the estimates have.
    ratios = np.append(ratios * middle / np.median(ratios), middle)
    effective = then.effective
    lost = effective.startup_seconds + effective.checkpoint_interval_seconds / 2
    left = steps * now.step_seconds / effective.share
    low, high = np.percentile((left * (1 - ratios) - lost) / _DAY, _TAILS)
    if low <= 0:
        return None
    days, hourly = (left * (1 - middle) - lost) / _DAY, advice.cluster.usd_per_hour
    return Offer(
        advice=advice,
        plan=better,
        estimate=then,
        days=days,
        days_range=(float(low), float(high)),
        usd=None if hourly is None else 24 * hourly * days,
        checkpoints=checkpoints,
    )
