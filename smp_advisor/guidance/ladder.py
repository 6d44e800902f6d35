"""The ladder of a plan: AWS's techniques in order, one after the other, until the plan is complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.practices import order, practice
from smp_advisor.guidance.rung_titles import batch_parts, off_settings, rung_title, start_title, technique_fields
from smp_advisor.guidance.techniques.conclusion import brief_change
from smp_advisor.guidance.what_if import WhatIf, evaluate, evaluate_best, vary, without
from smp_advisor.libraries.controls import fields_of, shardable_gpus
from smp_advisor.libraries.groups import divisors, shard_degree
from smp_advisor.libraries.library import get_library, plan_fields
from smp_advisor.uninterrupted import uninterrupted
from smp_advisor.wording import SAME, degree_of_change, fits

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.step import Step
    from smp_advisor.libraries.plan import Plan

__all__ = ["Ladder", "Rung", "climb", "unused_techniques"]

START = "start"
"""`Rung.technique` of the plan without any technique."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One line of a ladder: a plan on the way to the explained plan, or one that was compared with it."""

    technique: str
    """Key in the library's best practices; ``start`` for the plan without any technique."""
    title: str
    """``sharded data parallelism over 8 GPUs``."""
    short_title: str
    """The same without figures: ``more sharding``."""
    decision: str
    """``used, now fits``, ``does not fit``, ``no gain``, ``not possible``, ..."""
    because: str = ""
    """One sentence for a technique that is not used, or a plan that the library does not allow."""
    plan: Plan | None = None
    """Plan of the rung, at the global batch of the explained plan; None if there is no such plan."""
    estimate: Estimate | None = None
    """Estimate of `plan`."""
    fits: bool = False
    """Whether `plan` fits with the required probability."""

    @property
    def needed_gib(self) -> float | None:
        """Memory needed per GPU."""
        return None if self.estimate is None else self.estimate.needed_gib

    @property
    def step_seconds(self) -> float | None:
        """Seconds per optimizer step; None if the plan does not fit, because its steps cannot run."""
        return self.estimate.step_seconds if self.estimate is not None and self.fits else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """The techniques of a plan in AWS's order, cumulative, and those that it does not use.

    ``print(ladder)`` writes it as text, a notebook shows it as a table, and `frame` makes a DataFrame.
    """

    rungs: tuple[Rung, ...]
    """From the plan without any technique to the explained plan, which is the last."""
    unused: tuple[Rung, ...]
    """The explained plan with one change each: another sharding, or a technique that it does not use."""
    usable_gib: float
    """Memory per GPU that a process can use."""

    def frame(self) -> pd.DataFrame:
        """One row per rung. ``used`` separates the rungs of the plan from the others."""
        with uninterrupted():
            import pandas as pd

        columns = ("technique", "title", "needed_gib", "fits", "step_seconds", "decision", "because")
        rows = [{"used": rung in self.rungs, **{name: getattr(rung, name) for name in columns}} for rung in self._all]
        return pd.DataFrame(rows, columns=[*columns[:2], "used", *columns[2:]])

    @property
    def _all(self) -> tuple[Rung, ...]:
        return (*self.rungs, *self.unused)

    def __str__(self) -> str:
        from smp_advisor.guidance.ladder_text import ladder_text

        return ladder_text(self)

    def _repr_html_(self) -> str:
        from smp_advisor.guidance.ladder_html import ladder_html

        return ladder_html(self)


def unused_techniques(run: PlannedRun) -> tuple[str, ...]:
    """Techniques whose explanation a ladder needs: those that the plan does not use, without the choice of instance."""
    library = run.plan.library
    arguments = {name: practice(name, library).argument for name in order(library)}
    return tuple(
        name for name, argument in arguments.items() if technique_fields(argument) and not off_settings(argument, run)
    )


def climb(run: PlannedRun, steps: tuple[Step, ...]) -> Ladder:
    """The ladder of a plan.

    A rung has the techniques up to its own, none of the later ones, and the plan's global batch in as many microbatches
    or accumulated batches. Where a library cannot run without a technique (FSDP's sharding), the first rung has it.

    Parameters
    ----------
    run
        Any plan: the recommendation, an alternative, or the plan of the controls.
    steps
        Its explanation (`explain`), which has the techniques that it does not use.
    """
    rungs = tuple(_rungs(run))
    compared = [_compared(run, step) for step in steps if step.decision != "used" and _divides(step)]
    return Ladder(
        rungs=rungs,
        unused=(*_at_once(run), *_other_sharding(run), *compared),
        usable_gib=run.cluster.instance.usable_gpu_memory_gib,
    )


def _rungs(run: PlannedRun) -> list[Rung]:
    """The plan without any technique, and each technique added to those before it."""
    library = run.plan.library
    arguments = {name: practice(name, library).argument for name in order(library)}
    off = {name: off for name, argument in arguments.items() if (off := off_settings(argument, run))}
    names = [START, *off]
    itself = WhatIf(cluster=run.cluster, job=run.job, plan=run.plan)
    plans: dict[str, WhatIf] = {}
    shards = get_library(library).shard_field
    for position, name in enumerate(names):
        later: dict[str, Any] = {}
        for following in names[position + 1 :]:
            later |= off[following]
        # Sharding over all GPUs would otherwise grow with the GPUs that later techniques take.
        own = {shards: getattr(run.plan, shards)} if later and shards and shards not in later else {}
        plans[name] = vary(run, **own, **later) if later else itself
    estimates = evaluate(run.model, plans) | {names[-1]: run.estimate}
    result: list[Rung] = []
    for name, comparison in plans.items():
        estimate = estimates.get(name)
        shown = comparison.plan or run.plan
        fitting = estimate is not None and fits(estimate, run.min_fit_probability)
        title = start_title(shown, run) if name == START else rung_title(arguments[name], run.plan, run)
        before = result[-1] if result else None
        result.append(
            Rung(
                technique=name,
                title=title,
                short_title=title,
                decision=_decision(before, estimate, fitting=fitting),
                because=comparison.obstacle or (f"With {', '.join(comparison.moved)}." if comparison.moved else ""),
                plan=comparison.plan,
                estimate=estimate,
                fits=fitting,
            )
        )
    return result


def _decision(before: Rung | None, estimate: Estimate | None, *, fitting: bool) -> str:
    """Decision on a technique of the plan, given the rung before it."""
    if estimate is None:
        return "no such plan"
    if before is None:
        return "fits" if fitting else _too_large(estimate)
    if not fitting:
        return "used, not enough"
    if not before.fits or before.estimate is None:
        return "used, now fits"
    if before.estimate.global_batch_size != estimate.global_batch_size:
        return "used"  # step times of other batches do not compare
    change = estimate.step_seconds / before.estimate.step_seconds - 1
    if change < -SAME:
        return "used for speed"
    if estimate.needed_gib < before.estimate.needed_gib:
        return "used for headroom"
    return "used, slower" if change > SAME else "used, no gain"


def _too_large(estimate: Estimate) -> str:
    """Whether a plan exceeds the memory, or only leaves too little for the required probability."""
    return "does not fit" if estimate.headroom_gib < 0 or not estimate.host_memory_fits else "too close to the limit"


def _divides(step: Step) -> bool:
    """Whether a step is about a technique that changes memory or time of a plan (not the instance, for example)."""
    return step.alternative is not None or (
        step.decision == "not possible" and step.technique not in {"instance", "collectives", "support"}
    )


def _compared(run: PlannedRun, step: Step) -> Rung:
    """The explained plan with a technique that it does not use."""
    argument = practice(step.technique, run.plan.library).argument
    fitting = step.outcome is not None and fits(step.outcome, run.min_fit_probability)
    return Rung(
        technique=step.technique,
        title=(
            f"{step.title[:1].lower()}{step.title[1:]}"
            if step.alternative is None
            else rung_title(argument, step.alternative, run)
        ),
        short_title=f"{step.title[:1].lower()}{step.title[1:]}",
        decision=_verdict(run, step.outcome, fitting=fitting),
        because=step.because,
        plan=step.alternative,
        estimate=step.outcome,
        fits=fitting,
    )


def _verdict(run: PlannedRun, outcome: Estimate | None, *, fitting: bool) -> str:
    """Decision on a plan with one change, against the explained plan."""
    if outcome is None:
        return "not possible"
    if not fitting:
        return _too_large(outcome)
    if not run.fits:
        return "would fit"
    before, after = run.estimate.samples_per_second, outcome.samples_per_second
    if abs(after / before - 1) < SAME:
        return "no gain"
    return degree_of_change(before, after, more="faster", less="slower")


def _at_once(run: PlannedRun) -> list[Rung]:
    """The plan with the batch of each replica at once, if it processes it in parts."""
    if not batch_parts(run.plan):
        return []
    field = "microbatches" if run.plan.microbatches > 1 else "gradient_accumulation_steps"
    changes: dict[str, Any] = {field: 1}
    comparison = vary(run, **changes)
    estimate = evaluate(run.model, {field: comparison}).get(field)
    if estimate is None:
        return []
    fitting = fits(estimate, run.min_fit_probability)
    return [
        Rung(
            technique="batch",
            title="the batch at once",
            short_title="the batch at once",
            decision=_verdict(run, estimate, fitting=fitting),
            because=f"{brief_change(run, estimate)}{comparison.aside}.",
            plan=comparison.plan,
            estimate=estimate,
            fits=fitting,
        )
    ]


def _other_sharding(run: PlannedRun) -> list[Rung]:
    """The plan with another sharding: the next lower degree and the largest, or the other kind of SMP v1."""
    plan, field = run.plan, get_library(run.plan.library).shard_field
    if not field:
        return []
    current = shard_degree(plan, run.cluster)
    degrees = [d for d in divisors(shardable_gpus(plan, fields_of(plan), run.cluster.gpus)) if d > 1]
    replaces = "shard_optimizer_state" in plan_fields(plan.library)
    changes: list[tuple[str, dict[str, Any]]] = []
    if current > 1:
        changes += [("sharding over fewer GPUs", {field: d}) for d in [d for d in degrees if d < current][-1:]]
        changes += [("sharding over all GPUs", {field: d}) for d in degrees[-1:] if d > current]
        changes += [("sharding only the optimizer state", {field: 1, "shard_optimizer_state": True})] * replaces
    elif plan.shard_optimizer_state and plan.pipeline_parallel_degree == 1:
        changes += [("sharded data parallelism instead", {field: d, "shard_optimizer_state": False}) for d in degrees]
    plans, estimates = evaluate_best(run, {n: without(run, **change) for n, (_, change) in enumerate(changes)})
    fitting = {key for key, estimate in estimates.items() if fits(estimate, run.min_fit_probability)}
    if current == 1:  # of sharded data parallelism, the smallest degree that fits
        smallest = sorted(fitting) or sorted(estimates, reverse=True)
        estimates = {key: estimates[key] for key in smallest[:1]}
    argument = "optimizer_state_sharding" if replaces else "sharding"
    result: list[Rung] = []
    for key, estimate in estimates.items():
        changed = plans[key].plan
        if changed is not None:
            result.append(
                Rung(
                    technique=argument,
                    title=f"{rung_title(argument, changed, run)} instead",
                    short_title=changes[key][0],
                    decision=_verdict(run, estimate, fitting=key in fitting),
                    because=f"{brief_change(run, estimate)}{plans[key].aside}.",
                    plan=changed,
                    estimate=estimate,
                    fits=key in fitting,
                )
            )
    return result
