"""The worth of a measurement before a run, and of another plan in the middle of it, against what each costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.core.files import sentence
from smp_advisor.core.tables import Shown, between, number
from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.predictive import step_time_draws
from smp_advisor.costs.wording import fits
from smp_advisor.errors import CalibrationError
from smp_advisor.libraries.library import get_library
from smp_advisor.runs.effect import MEASURED_STEPS, Probe, best_probe, full_probe
from smp_advisor.search.decision import leading_plans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Advice

    Floats = NDArray[np.float64]

_TOGETHER = 2
"""Most plans that are measured before the choice."""


@dataclass(frozen=True, kw_only=True)
class Worth(Shown):
    """The probes with the most expected saving beyond their price, and whether it is any."""

    plans: tuple[Plan, ...]
    """Plans to measure; those of the best probes if measuring is not worth it. Empty if no other plan is close."""
    probes: tuple[Probe, ...]
    """A short job for each of them, on one or two nodes or on the cluster of the run."""
    cost_usd: float
    """Price of the probes, with the start of their jobs."""
    expected_saving_usd: float
    """By how much the expected cost of the run falls if the step times of `plans` are known before the choice: the
    expectation over the 64 joint draws of the step times behind the recommendation. A probe saves at most this."""
    certain_saving_usd: float
    """The same with the step times of all leading plans known: no measurement saves more on average."""
    compared: tuple[Plan, ...]
    """The leading plans, the recommended one first."""
    advice: Advice = field(repr=False, compare=False)

    @property
    def measure(self) -> bool:
        """Whether the probes save more than they cost, on average."""
        return self.expected_saving_usd > self.cost_usd

    @property
    def decision(self) -> str:
        """Whether to measure, in one sentence."""
        if not self.plans:
            return "Not worth measuring: one of the leading plans is the cheapest in every draw of their step times."
        plans = "this plan" if len(self.plans) == 1 else f"these {len(self.plans)} plans"
        what = f"A probe of {MEASURED_STEPS} steps of {plans} costs {self.cost_usd:,.2f} USD and saves "
        what += f"up to {self.expected_saving_usd:,.0f} USD on average"
        return f"{what}: measure." if self.measure else f"Not worth measuring: {what[0].lower()}{what[1:]}."

    def cells(self, sdk: str = "auto", **options: Any) -> tuple[str, ...]:
        """Return the cells of the probes: for each one its training script, if it is generated, and its job.

        Parameters
        ----------
        sdk, options
            As for `Advice.cell`.
        """
        pairs = (
            (
                self.advice.probe_script_cell(probe=probe),
                f"{self.advice.probe_cell(sdk, probe=probe, **options).rstrip()}\n{name} = job_name\n",
            )
            for name, probe in zip(self.jobs, self.probes, strict=True)
        )
        return tuple(cell for pair in pairs for cell in pair if cell)

    @property
    def jobs(self) -> tuple[str, ...]:
        """Variables in which the cells leave the names of their jobs."""
        return tuple(f"probe_{place}" for place in range(1, len(self.probes) + 1))

    def learn(self, *logs: Any) -> Advice:
        """Return the advice with what the probes taught, from the log or `Run` of each in the order of `probes`.

        Raises
        ------
        CalibrationError
            There are not as many logs as probes, or as for `Advice.calibrate`.
        """
        if len(logs) != len(self.probes):
            raise CalibrationError(f"learn() takes {len(self.probes)} logs, one for each probe, not {len(logs)}.")
        advice = self.advice
        for log, probe in zip(logs, self.probes, strict=True):
            advice = advice.calibrate(log, probe=probe)
        return advice

    def __str__(self) -> str:
        lines = [f"{plan}: {probe.lines[0]}" for plan, probe in zip(self.plans, self.probes, strict=True)]
        if lines:
            certain = f"With all step times known, the choice among {len(self.compared)} plans would save "
            lines.append(f"{certain}{self.certain_saving_usd:,.0f} USD on average.")
        return "\n".join([self.decision, *lines])


def worth_measuring(advice: Advice) -> Worth:
    """Return the best probes of an advice's leading plans. See `Advice.worth_measuring`."""
    total, rate = advice.estimate.usd_total, advice.estimate.tokens_per_second
    if total is None:
        missing = "tokens=" if advice.job.tokens is None else "usd_per_hour= of the instance"
        raise CalibrationError(f"The saving depends on the cost of the run: make the advice with {missing}.")
    plans, speeds = leading_plans(advice.model, advice.job, advice.result)
    # A plan that is the cheapest in no draw neither is chosen after a measurement nor needs one.
    able = sorted({0, *speeds.argmax(axis=1).tolist()})
    plans, speeds = [plans[row] for row in able], speeds[:, able]
    # The start takes as long with any plan.
    costs = total * (1 - dict(advice.estimate.effective.shares).get("startup", 0.0)) * rate / speeds
    expected = costs.mean(axis=0)
    certain = float(expected.min() - costs.min(axis=1).mean())
    chosen = [0, *np.argsort(expected)[np.argsort(expected) != 0]][:_TOGETHER] if len(plans) > 1 else []
    probes = [_probe(advice, plans[row]) for row in chosen]
    # A plan that is not measured is chosen for its expectation.
    least = np.delete(expected, chosen).min(initial=np.inf)
    gained = expected.min() - np.minimum(costs[:, chosen].min(axis=1, initial=np.inf), least).mean() if chosen else 0.0
    learn = "%smp_calibrate --job NAME for each job, or worth.learn(*runs) with the runs in their order"
    return Worth(
        plans=tuple(plans[row] for row in chosen),
        probes=tuple(replace(probe, afterwards=learn) for probe in probes),
        cost_usd=sum(probe.usd or 0.0 for probe in probes),
        expected_saving_usd=float(np.clip(gained, 0.0, certain)),
        certain_saving_usd=certain,
        compared=tuple(plans),
        advice=advice,
    )


def _probe(advice: Advice, plan: Plan) -> Probe:
    """Return the best short job on one or two nodes, or one on the cluster of the run if none fits there."""
    where = (advice.model, advice.cluster, advice.job, plan)
    try:
        return best_probe(*where, scalable=advice.script is None, min_fit_probability=advice.min_fit_probability)
    except CalibrationError:
        return full_probe(*where)


_DAY = 86_400
_TAILS = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True)
class Offer(Shown):
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
        estimate=then,
        days=days,
        days_range=(float(low), float(high)),
        usd=None if hourly is None else 24 * hourly * days,
        checkpoints=checkpoints,
    )
