"""Another plan in the middle of a run: what it saves, less what the change costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.core.files import sentence
from smp_advisor.core.tables import Shown, between, number
from smp_advisor.costs import estimate
from smp_advisor.costs.predictive import step_time_draws
from smp_advisor.costs.wording import fits
from smp_advisor.libraries.library import get_library

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Advice

_DAY = 86_400
_TAILS = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True)
class Offer(Shown):
    """Another plan from the next checkpoint on. `cell` resumes the run with it."""

    advice: Advice
    """The calibrated advice."""
    plan: Plan
    days: float
    """Days saved, less those of the change itself."""
    days_range: tuple[float, float]
    """95 % interval."""
    usd: float | None
    """USD saved; None if the price is unknown."""
    checkpoints: str = ""
    """Location of the run's checkpoints; empty if it is unknown."""

    def cell(self, **options: Any) -> str:
        """Return the cell that resumes the run with the plan, from its checkpoints. Stop the run first."""
        return self.advice.cell(
            plan=self.plan, **({"checkpoints": self.checkpoints} if self.checkpoints else {}) | options
        )

    def __str__(self) -> str:
        money = "" if self.usd is None else f", {number(self.usd)} USD"
        place = "" if self.checkpoints else " The run's checkpoints were not found: pass offer.cell(checkpoints=)."
        values = {"days": number(self.days), "money": money, "interval": between(self.days_range)}
        return sentence("runs", "offer", **values, plan=self.plan, place=place)


def offer_of(advice: Advice, plan: Plan, steps: int, *, checkpoints: str = "") -> Offer | None:
    """The recommended plan of a calibrated advice for the remaining steps of a run, if it is better for certain."""
    choice = advice.recommended
    better = choice.plan
    # It has to resume from the same checkpoints: SMP v1's are divided as its plan is.
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
        days=days,
        days_range=(float(low), float(high)),
        usd=None if hourly is None else 24 * hourly * days,
        checkpoints=checkpoints,
    )
