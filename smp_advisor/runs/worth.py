"""The worth of a measurement before a run, and of another plan in the middle of it, against what each costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.random  # numpy itself imports it at its first use, where an interrupt can break it

from smp_advisor.core.tables import Shown, between, number
from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.predictive import step_time_draws
from smp_advisor.costs.wording import fits
from smp_advisor.errors import CalibrationError
from smp_advisor.libraries.library import get_library
from smp_advisor.runs.effect import MEASURED_STEPS, Probe, best_probe, full_probe
from smp_advisor.search.decision import leading_plans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Advice

    Floats = NDArray[np.float64]

_TOGETHER = 2
"""Most plans that are measured before the choice."""
_REPEATS = 16
"""Draws of the error of measurement for each joint draw of the plans' step times."""


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
    """Expected value of sample information: by how much the expected cost of the run falls if the plan is chosen after
    the probes, with the least expected cost, instead of before. Both expectations are over the 64 joint draws of the
    step times behind the recommendation; a probe has the error that its expected effect on the interval implies."""
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
        what += f"{self.expected_saving_usd:,.0f} USD on average"
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
    of_steps = total * (
        1 - dict(advice.estimate.effective.shares).get("startup", 0.0)
    )  # the start takes as long anyway
    costs, logs = of_steps * rate / speeds, -np.log(speeds)
    certain = expected_saving(costs, logs, range(len(plans)), np.zeros(len(plans)))
    options = [_probes(advice, plan) if len(plans) > 1 else [] for plan in plans]
    best: tuple[float, tuple[Probe, ...], tuple[int, ...], float, float] = (-np.inf, (), (), 0.0, 0.0)
    for several in range(1, _TOGETHER + 1):
        for rows in combinations(range(len(plans)), several):
            for probes in product(*(options[row] for row in rows)):
                widths = np.array([probe.width for probe in probes])
                # The error of a measurement that narrows the interval of a step time to this share of its width.
                noise = logs[:, rows].std(axis=0) * widths / np.sqrt(np.maximum(1 - widths**2, 1e-9))
                saving = min(expected_saving(costs, logs, rows, noise), certain)
                price = sum(probe.usd or 0.0 for probe in probes)
                best = max(best, (saving - price, probes, rows, saving, price), key=lambda entry: entry[0])
    _, probes, rows, saving, price = best
    learn = "%smp_calibrate --job NAME for each job, or worth.learn(*runs) with the runs in their order"
    return Worth(
        plans=tuple(plans[row] for row in rows),
        probes=tuple(replace(probe, afterwards=learn) for probe in probes),
        cost_usd=price,
        expected_saving_usd=saving,
        certain_saving_usd=certain,
        compared=tuple(plans),
        advice=advice,
    )


def _probes(advice: Advice, plan: Plan) -> list[Probe]:
    """Return the best short job on one or two nodes, if there is any, and one on the cluster of the run."""
    where = (advice.model, advice.cluster, advice.job, plan)
    try:
        least = advice.min_fit_probability
        return [best_probe(*where, scalable=advice.script is None, min_fit_probability=least), full_probe(*where)]
    except CalibrationError:
        return [full_probe(*where)]


def expected_saving(costs: Floats, logs: Floats, measured: Sequence[int], noise: Floats) -> float:
    """Expected value of sample information, in the unit of the costs, whose shape is (draws, plans).

    The posterior expectation of each difference of costs is its linear regression on the measured columns of `logs`,
    whose coefficients the spreads `noise` shrink (Strong, Oakley, Brennan and Breeze 2015, "Estimating the expected
    value of sample information using the probabilistic sensitivity analysis sample"). It stays within the draws.
    """
    differences = costs - costs[:, [costs.mean(axis=0).argmin()]]
    times = logs[:, list(measured)]
    if not noise.any():  # then a draw is known by its measurements
        return float(differences.mean(axis=0).min() - differences.min(axis=1).mean())
    centered, target = times - times.mean(axis=0), differences - differences.mean(axis=0)
    covariance = centered.T @ centered / len(times) + np.diag(noise**2)
    gain = np.linalg.lstsq(covariance, centered.T @ target / len(times), rcond=None)[0]
    errors = noise * np.random.default_rng(0).standard_normal((_REPEATS, *times.shape))
    expected = np.clip(
        differences.mean(axis=0) + (centered + errors) @ gain, differences.min(axis=0), differences.max(axis=0)
    ).reshape(-1, costs.shape[1])
    return float(max(expected.mean(axis=0).min() - expected.min(axis=1).mean(), 0.0))


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
        return (
            f"Change at the next checkpoint: saves {number(self.days)} days{money} ({between(self.days_range)} days)."
            f" The plan: {self.plan!r}.{place}"
        )


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
