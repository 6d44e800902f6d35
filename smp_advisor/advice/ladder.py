"""The ladder of a plan: AWS's techniques in order, one after the other, until the plan is complete."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import brief_change
from smp_advisor.advice.practices import Step, order, practice
from smp_advisor.advice.variants import PlannedRun, WhatIf, evaluate, evaluate_best, vary, without
from smp_advisor.core.files import data_file
from smp_advisor.core.tables import Table, frame_of
from smp_advisor.core.words import escape
from smp_advisor.costs.evaluate import memory_columns
from smp_advisor.costs.wording import (
    SAME,
    checkpointing_text,
    degree_of_change,
    first_sentence,
    fits,
    gib,
    seconds,
    step_time,
)
from smp_advisor.errors import PlanError
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.controls import fields_of, shardable_gpus
from smp_advisor.libraries.groups import divisors, global_batch_size, shard_degree
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.library import get_library, plan_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from smp_advisor.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload import Job


def technique_data(argument: str) -> Mapping[str, Any]:
    """Return what ``techniques.toml`` has on a technique, by the argument of its practice (`Practice.argument`)."""
    entry: Mapping[str, Any] = data_file("advice", "techniques").get(argument, {})
    return entry


def technique_fields(argument: str) -> frozenset[str]:
    """Return fields of plans that belong to a technique, by the argument of its practice."""
    return frozenset((*technique_data(argument).get("off", ()), *technique_data(argument).get("fields", ())))


def off_settings(argument: str, run: PlannedRun) -> dict[str, Any]:
    """Return settings of a plan that turn one of its techniques off; empty if the plan does not use it."""
    plan, off = run.plan, technique_data(argument).get("off", {})
    if argument == "sharding":  # SMP v2 trains without it at degree 1; FSDP's least sharding is that inside a node
        in_node = "hybrid_shard_degree" not in plan_fields(plan.library)
        if shard_degree(plan, run.cluster) > (run.cluster.gpus_per_node if in_node else 1):
            off = {"sharding_strategy": "hybrid_shard"} if in_node else {"hybrid_shard_degree": 1}
    own = {name: value for name, value in off.items() if name in plan_fields(plan.library)}
    return own if any((getattr(plan, name) or False) != (value or False) for name, value in own.items()) else {}


def start_title(plan: Plan, run: PlannedRun) -> str:
    """Return the title of the plan without any technique."""
    shards, parts = shard_degree(plan, run.cluster), batch_parts(plan)
    batch = f", {parts}" if parts else ""
    if shards > 1:
        return f"sharding over {shards} GPUs, which the library requires{batch}"
    return f"the entire model on {'each' if run.cluster.gpus > 1 else 'the'} GPU{batch}"


def batch_parts(plan: Plan) -> str:
    """Return parts of a batch that run one after the other: ``4 microbatches``; empty if it runs at once."""
    if plan.microbatches > 1:
        return f"{plan.microbatches:,} microbatches"
    steps = plan.gradient_accumulation_steps
    return f"{steps:,} accumulated batches" if steps > 1 else ""


def rung_title(argument: str, plan: Plan, run: PlannedRun) -> str:
    """Return the title of a technique of a plan, by the argument of its practice."""
    if argument == "optimizer_state_sharding" and plan.sharded_data_parallel_degree == 1:
        return "optimizer-state sharding"
    if argument == "activation_checkpointing":
        strategy = plan.activation_checkpointing
        text = "" if strategy in {False, "each"} else f" ({checkpointing_text(str(strategy))})"
        return f"activation checkpointing{text}"
    title: str = technique_data(argument)["rung"]
    return title.format(plan=plan, shards=shard_degree(plan, run.cluster))


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
    """``fits from here``, ``does not fit``, ``no gain``, ``not possible``, ..."""
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
        """Return one row per rung. ``used`` separates the rungs of the plan from the others."""
        columns = ("technique", "title", "needed_gib", "fits", "step_seconds", "decision", "because")
        rows = [
            {"used": rung in self.rungs, **{name: getattr(rung, name) for name in columns}}
            for rung in (*self.rungs, *self.unused)
        ]
        return frame_of(rows, columns=[*columns[:2], "used", *columns[2:]])

    def __str__(self) -> str:
        return ladder_text(self)

    def _repr_html_(self) -> str:
        return ladder_html(self)


def unused_techniques(run: PlannedRun) -> tuple[str, ...]:
    """Techniques whose explanation a ladder needs: those that the plan does not use, without the choice of instance."""
    library = run.plan.library
    arguments = {name: practice(name, library).argument for name in order(library)}
    return tuple(
        name for name, argument in arguments.items() if technique_fields(argument) and not off_settings(argument, run)
    )


def climb(run: PlannedRun, steps: tuple[Step, ...]) -> Ladder:
    """The ladder of a plan, each rung at its global batch in as many parts; the first has what the library requires."""
    unused = _other_sharding(run)
    if batch_parts(run.plan):  # the batch of each replica at once
        field = "microbatches" if run.plan.microbatches > 1 else "gradient_accumulation_steps"
        at_once: dict[str, Any] = {field: 1}
        undivided = vary(run, **at_once)
        for estimate in evaluate(run.model, {field: undivided}).values():
            because = f"{brief_change(run, estimate)}{undivided.aside}."
            unused.insert(0, _changed(run, "batch", ("without microbatches",) * 2, undivided.plan, estimate, because))
    for step in steps:
        # Not the instance, for example: techniques that change memory or time of a plan.
        impossible = step.decision == "not possible" and step.technique not in {"instance", "collectives", "support"}
        if step.decision != "used" and (step.alternative is not None or impossible):
            name = f"{step.title[:1].lower()}{step.title[1:]}"
            argument = practice(step.technique, run.plan.library).argument
            title = name if step.alternative is None else rung_title(argument, step.alternative, run)
            rung = _changed(run, step.technique, (title, name), step.alternative, step.outcome, step.because)
            unused.append(rung)
    usable = run.cluster.instance.usable_gpu_memory_gib
    return Ladder(rungs=tuple(_rungs(run)), unused=tuple(unused), usable_gib=usable)


def _cumulative(run: PlannedRun) -> dict[str, WhatIf]:
    """Return the plan without any technique, and with each technique added to those before it, by technique."""
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
        plans[name] = _same_microbatches(run, vary(run, **own, **later)) if later else itself
    return plans


def _same_microbatches(run: PlannedRun, comparison: WhatIf) -> WhatIf:
    """Return the comparison with as many microbatches as the plan: a batch that they do not divide is rounded up."""
    plan, number = comparison.plan, run.plan.microbatches
    if plan is None or plan.microbatches == number:
        return comparison
    batch = -(-plan.batch_size // number) * number
    try:
        same_plan = replace(plan, batch_size=batch, microbatches=number)
    except PlanError:
        return comparison
    job = replace(comparison.job, global_batch_size=None)
    if any(mismatches(same_plan, comparison.cluster, run.model, job)):
        return comparison
    moved = tuple(text for text in comparison.moved if "microbatch" not in text)
    samples, before = global_batch_size(same_plan, comparison.cluster), run.estimate.global_batch_size
    aside = () if samples == before else (f"a global batch of {samples:,} samples instead of {before:,}",)
    return replace(comparison, plan=same_plan, job=job, moved=(*moved, *aside))


def stairs(runs: Sequence[PlannedRun]) -> list[list[tuple[str, float | None]]]:
    """Title and GiB per GPU of each rung of plans for one model, computed together; None where there is no plan."""
    ladders = [_cumulative(run) for run in runs]
    groups: dict[tuple[Cluster, Job], dict[tuple[int, str], Plan]] = {}
    for at, by in enumerate(ladders):
        for name, comparison in list(by.items())[:-1]:
            if comparison.plan is not None:
                groups.setdefault((comparison.cluster, comparison.job), {})[at, name] = comparison.plan
    needed: dict[tuple[int, str], float] = {}
    for (cluster, job), plans in groups.items():
        layout = layout_of(list(plans.values()), job, cluster)
        column_gib = memory_columns(runs[0].model, cluster, job, layout).needed_bytes / 2**30
        needed.update(zip(plans, column_gib.tolist(), strict=True))
    return [
        [
            (
                _title(name, comparison, run)
                + ", another batch" * any("a global batch of" in text for text in comparison.moved),
                needed.get((at, name)) if n < len(by) - 1 else run.estimate.needed_gib,
            )
            for n, (name, comparison) in enumerate(by.items())
        ]
        for at, (run, by) in enumerate(zip(runs, ladders, strict=True))
    ]


def _title(name: str, comparison: WhatIf, run: PlannedRun) -> str:
    if name == START:
        return start_title(comparison.plan or run.plan, run)
    return rung_title(practice(name, run.plan.library).argument, run.plan, run)


def _rungs(run: PlannedRun) -> list[Rung]:
    """Return the rungs of a plan with their decisions."""
    plans = _cumulative(run)
    estimates = evaluate(run.model, plans) | {list(plans)[-1]: run.estimate}
    result: list[Rung] = []
    for name, comparison in plans.items():
        estimate = estimates.get(name)
        fitting = estimate is not None and fits(estimate, run.min_fit_probability)
        title = _title(name, comparison, run)
        before = result[-1] if result else None
        moved = [text for text in comparison.moved if fitting or not text.startswith("fp16, because")]
        result.append(
            Rung(
                technique=name,
                title=title,
                short_title=title,
                decision=_decision(before, estimate, fitting=fitting),
                because=comparison.obstacle or (f"With {', '.join(moved)}." if moved else ""),
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
        if before.fits:
            return "used, no longer fits"
        return "still too big" if _too_large(estimate) == "does not fit" else "used, too close to the limit"
    if not before.fits or before.estimate is None:
        return "fits from here"
    if before.estimate.global_batch_size != estimate.global_batch_size:
        return "used"  # step times of other batches do not compare
    change = estimate.step_seconds / before.estimate.step_seconds - 1
    if change < -SAME:
        return "faster"
    if estimate.needed_gib < before.estimate.needed_gib:
        return "used for headroom"
    return "used, slower" if change > SAME else "used, no gain"


def _too_large(estimate: Estimate) -> str:
    """Return whether a plan exceeds the memory, or only leaves too little for the required probability."""
    return "does not fit" if estimate.headroom_gib < 0 or not estimate.host_memory_fits else "too close to the limit"


def _changed(
    run: PlannedRun, technique: str, titles: tuple[str, str], plan: Plan | None, estimate: Estimate | None, because: str
) -> Rung:
    """Return the explained plan with one change, and the decision against the explained plan."""
    fitting = estimate is not None and fits(estimate, run.min_fit_probability)
    decision = "not possible"
    if estimate is not None:
        before, after = run.estimate.samples_per_second, estimate.samples_per_second
        if not fitting:
            decision = _too_large(estimate)
        elif not run.fits:
            decision = "would fit"
        elif abs(after / before - 1) < SAME:
            decision = "no gain"
        else:
            decision = degree_of_change(before, after, more="faster", less="slower")
    return Rung(
        technique=technique,
        title=titles[0],
        short_title=titles[1],
        decision=decision,
        because=because,
        plan=plan,
        estimate=estimate,
        fits=fitting,
    )


def _other_sharding(run: PlannedRun) -> list[Rung]:
    """Return the plan with another sharding: the next lower degree and the largest, or the other kind of SMP v1."""
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
    if current == 1:  # of sharded data parallelism, the smallest degree that fits
        fitting = [key for key, estimate in estimates.items() if fits(estimate, run.min_fit_probability)]
        smallest = sorted(fitting) or sorted(estimates, reverse=True)
        estimates = {key: estimates[key] for key in smallest[:1]}
    argument = "optimizer_state_sharding" if replaces else "sharding"
    result: list[Rung] = []
    for key, estimate in estimates.items():
        changed = plans[key].plan
        if changed is not None:
            titles = (f"{rung_title(argument, changed, run)} instead", changes[key][0])
            because = f"{brief_change(run, estimate)}{plans[key].aside}."
            result.append(_changed(run, argument, titles, changed, estimate, because))
    return result


COLUMNS = ("technique", "memory needed", "fits", "step time", "decision")
"""Headings of the table."""


def cells(rung: Rung, *, first: bool = False) -> tuple[str, str, str, str, str]:
    """Return texts of a rung, one per column. Every rung but the first adds its technique to those before it."""
    return (
        rung.title if first else f"+ {rung.title}",
        "-" if rung.needed_gib is None else gib(rung.needed_gib),
        "yes" if rung.fits else "no",
        step_time(rung.estimate) if rung.estimate is not None and rung.fits else "-",
        f"{rung.decision} (another batch)" if "a global batch of" in rung.because else rung.decision,
    )


def ladder_text(ladder: Ladder, *, figures: bool = True) -> str:
    """Return the ladder as a table in text; with `figures`, also those of techniques that are not used."""
    rows = [cells(rung, first=not position) for position, rung in enumerate(ladder.rungs)]
    if figures and ladder.unused:
        rows += [("with one change:", "", "", "", ""), *(cells(rung, first=True) for rung in ladder.unused)]
    return "\n".join(f"  {line}" for line in Table(columns=COLUMNS, rows=rows, right={1, 3}).lines())


def unused_lines(ladder: Ladder) -> list[str]:
    """Return one line for each technique that is not used: the technique, and the reason without figures."""
    return [
        f"{rung.short_title[:1].upper()}{rung.short_title[1:]}."
        f" {rung.because.partition(' (')[0] + '.' if rung.because.endswith(').') else rung.because}"
        for rung in ladder.unused
        if rung.technique != "batch"  # the reason for the parts of the batch is with the used techniques
    ]


def reasons_of(steps: Sequence[Step]) -> dict[str, str]:
    """Return the reason for each used technique in a sentence: of the full plan, whatever is added before it."""
    return {
        step.technique: re.sub(r"\b([Tt])he plan\b", r"\1he full plan", first_sentence(step.because))
        for step in steps
        if step.decision == "used"
    }


def ladder_html(ladder: Ladder, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the ladder as a table, the unused techniques below a title."""
    groups: list[list[str]] = [[], []]
    for position, rung in enumerate((*ladder.rungs, *ladder.unused)):
        used = position < len(ladder.rungs)
        reason = rung.because or reasons.get(rung.technique, "")
        if not used:  # the decision has this already
            reason = re.sub(r"^The plan would (not )?fit(, either,?)?( with it)?", "", reason)
        reason = re.sub(r"^\((.*)\)$", r"\1", reason.strip(" ."))
        size = "no such plan" if rung.needed_gib is None else gib(rung.needed_gib)
        title = f"{rung.title[:1].upper()}{rung.title[1:]}"
        note = f'<span class="smp-note">{escape(f"{reason[:1].upper()}{reason[1:]}.")}</span>' if reason else ""
        state = "fit" if rung.fits else "risk" if rung.estimate is not None and rung.estimate.fits else "over"
        groups[not used].append(
            f'<tr class="smp-rung-{state}"><th scope="row" style="text-align:left;font-weight:400">'
            f'<span class="smp-rung-title">{"+ " * (used and position > 0)}{escape(title)}</span>'
            f' <b class="smp-rung-decision">{escape(rung.decision)}</b> {note}</th>'
            f"<td>{size}</td>"
            f"<td>{seconds(rung.step_seconds) if rung.step_seconds is not None else ''}</td></tr>"
        )
    titles = ("Technique, decision and reason", "Memory per GPU", "Step time")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    divider = f'<tr class="smp-rung-other"><th colspan="{len(titles)}" scope="colgroup">With one change</th></tr>'
    second_body = f"<tbody>{divider}{''.join(groups[1])}</tbody>" if groups[1] else ""
    return (
        '<table class="smp-table smp-ladder"><caption style="text-align:left">Techniques in AWS\'s order, each added to'
        f' those above <span class="smp-note">({ladder.usable_gib:.1f} GiB usable)</span></caption>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(groups[0])}</tbody>{second_body}</table>"
    )
