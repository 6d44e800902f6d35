"""Data of the front end: the recommendation, the figures of one plan and of all moves from it, and the glossary."""

from __future__ import annotations

import re
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.ladder import stairs
from smp_advisor.advice.report import planned
from smp_advisor.charts.step import stage_groups
from smp_advisor.core.files import data_file
from smp_advisor.costs.estimate import CATEGORIES, Estimate
from smp_advisor.costs.wording import adapter_text, listed, percent, probability
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import Settings, get_library, libraries, plan_fields
from smp_advisor.libraries.schema import schema
from smp_advisor.notebook.figures import decisive, fit, headlines, likelihood, memory, preferred
from smp_advisor.notebook.workload_fields import workload_fields
from smp_advisor.session.cells import call_of_inputs
from smp_advisor.session.control_state import tried
from smp_advisor.session.controls import controls
from smp_advisor.session.settings import (
    configuration,
    moved_settings,
    rows_of,
    settings_of,
    with_labels,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice.learned import Summary
    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.cluster import Instance
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session.control_state import ControlState
    from smp_advisor.workload import Job


Data = dict[str, Any]
"""JSON for the views. `js/src/widget/wire.ts` describes every part."""


_STATE, _ACTIVATIONS = CATEGORIES[:4], CATEGORIES[4:7]
"""Categories of memory that are one part of the picture; buffers and CUDA are the rest."""


def glances(advice: Recommendation, plans: Sequence[tuple[Job, Plan, Estimate]]) -> list[Data]:
    """Return the costs of plans as strip and picture show them, with all estimates of the techniques together.

    The edge is the memory below which a plan stays with the required probability: beyond the usable memory if and only
    if the verdict is not *Fits*.
    """
    required, model, library = advice.min_fit_probability, advice.model, schema(advice.plan.library).name
    reach = NormalDist().inv_cdf(min(max(required, 1e-9), 1 - 1e-9))
    rungs = stairs([planned(advice, *of) for of in plans])
    result = []
    for (_, _, estimate), steps in zip(plans, rungs, strict=True):
        state, usable = fit(estimate, required), estimate.usable_gpu_memory_gib
        edge = estimate.needed_gib + reach * estimate.memory_error_gib
        edge = min(edge, usable) if state == "fits" else max(edge, usable) if state == "risk" else edge
        peak = next(group for group in stage_groups(estimate.memory.stages) if group.is_peak)
        of = dict(zip(CATEGORIES, peak.parts, strict=True))
        speed, time, money = headlines(model, estimate)
        result.append(
            {
                "fit": state,
                "gib": round(estimate.needed_gib, 6),
                "edge": round(edge, 2),
                "odds": probability(estimate.fit_probability).replace("over ", "> ").replace("under ", "< "),
                "state": round(sum(of[name] for name in _STATE), 2),
                "activations": round(sum(of[name] for name in _ACTIVATIONS), 2),
                "rate": float(f"{estimate.samples_per_second:.5g}"),
                "speed": speed.value,
                "time": f"{time.value} {time.unit}" if estimate.days is not None else "",
                "money": money.value,
                "memory": memory(estimate) if estimate.headroom_gib >= 0 and state == "over" else "",
                "rungs": [[rung_text(title, library), None if gib is None else round(gib, 1)] for title, gib in steps],
            }
        )
    return result


def rung_text(title: str, library: str) -> str:
    """A technique in the words of the picture: ``Sharding over 4 GPUs``, or ``FSDP over 4 GPUs`` if it is required."""
    if ", which the library requires" in title:
        title = title.replace("sharding", library, 1)
    text = title.replace("sharded data parallelism", "sharding").removeprefix("the ")
    text = re.sub(r"^([\d,]+) pipeline stages", r"pipeline over \1 stages", text)
    text = text.replace("optimizer-state sharding", "sharding of the optimizer state")
    text = re.sub(r"(, which the library requires|, [\d,]+ (microbatches|accumulated batches))", "", text)
    return f"{text[:1].upper()}{text[1:]}"


def snapshot(advice: Recommendation, settings: Settings, plan: Plan, estimate: Estimate) -> Data:
    """Data of one plan for a view: what it shows at a glance, and its details."""
    model = advice.model
    return {
        "settings": settings,
        "costs": glances(advice, [(advice.job, plan, estimate)])[0],
        "configuration": list(configuration(advice, plan).values()),
        "preferred": preferred(advice, estimate),
        "likely": likelihood(estimate, advice.min_fit_probability),
        "headline": [(*figure,) for figure in headlines(model, estimate)],
    }


def snapshot_of(state: ControlState) -> Data:
    """Data of the plan of the controls."""
    return snapshot(state.advice, settings_of(state.plan, state.advice.job), state.plan, state.estimate)


def control_dicts(advice: Recommendation, settings: Settings) -> list[Data]:
    """Values of the controls as plain data, in the order of AWS's best practices; `recommendation` has the rest."""
    data = []
    for control in sorted(controls(advice, settings), key=lambda control: _place(control.name)):
        # A page writes numbers itself.
        texts = () if control.texts == tuple(f"{v:,}" for v in control.values if type(v) is int) else control.texts
        optional = {"texts": texts, "fixed_because": control.fixed_because}
        own = {"name": control.name, "values": list(control.values)}
        data.append(own | {name: value for name, value in optional.items() if value})
    return data


def _place(control: str) -> tuple[int, int]:
    """Group of a control, and its place in the group."""
    groups = data_file("notebook", "page")["controls"]
    return next(((group, of.index(control)) for group, of in enumerate(groups) if control in of), (2, 0))


def uncited_hardware(instance: Instance) -> str:
    """Return which figures of an instance have no source, as a sentence; empty if all have."""
    words = data_file("notebook", "page")["hardware"]
    names = dict.fromkeys(words.get(name, name.replace("_", " ")) for name in instance.assumed)
    return f"No source is cited for these figures of the hardware: {listed(list(names))}." if names else ""


def measured(learned: Summary) -> str:
    """By which runs the figures are corrected, and from what to what."""
    (label, before, after), *_ = learned.changes
    runs = ", ".join(source for source, _ in learned.runs)
    return f"by {runs}: {label[:1].lower()}{label[1:]} {before} → {after}."


def recommendation(advice: Recommendation) -> Data:
    """Data of the advice that no control changes."""
    instance, library = advice.cluster.instance, advice.plan.library
    rows = rows_of(library)
    own_controls = controls(advice, settings_of(advice.plan, advice.job))
    trained = "" if advice.job.adapter is None else f"{adapter_text(advice.job.adapter)} for "
    return {
        "title": f"{trained}{advice.model.name} on {advice.cluster.nodes} × {instance.name}",
        "workload": workload_fields(advice),
        "decisive": decisive(advice),
        "controls": {
            c.name: {"label": c.label, "kind": c.kind, "group": _place(c.name)[0], "help": c.help} for c in own_controls
        },
        "measured": "" if advice.learned is None else measured(advice.learned),
        "call": call_of_inputs(advice),
        "required": percent(advice.min_fit_probability),
        "per_sample": advice.model.sequence_length(advice.job.sequence_length) if advice.model.reads_tokens else 1,
        "usable_gib": instance.usable_gpu_memory_gib,
        "groups": ["AWS's best practices, in order", f"Also in {get_library(library).title}", "Rarely changed"],
        "names": list(rows),
        "rows": list(rows.values()),
        "recommended": snapshot(advice, settings_of(advice.plan, advice.job), advice.plan, advice.estimate),
    }


_LATER = frozenset({"stack"})
"""Controls of many values that change rarely: their plans are computed when they are chosen."""

Moves = dict[str, list[tuple[Settings, Data | str]]]
"""For each control, what each of its values changes of the settings, and the plan at a glance or a problem."""


def look_ahead(advice: Recommendation, base: Settings) -> Moves:
    """Return all moves from `base`."""
    table: Moves = {}
    plans: list[tuple[str, int, ControlState]] = []
    for control in controls(advice, base):
        if len(control.values) < 2 or control.name in _LATER:
            continue
        table[control.name] = []
        for position, value in enumerate(control.values):
            settings, problem = moved_settings(advice, base, control.name, value), ""
            try:
                state = tried(advice, settings)
            except AdvisorError as error:
                problem = with_labels(advice.plan.library, str(error))
            else:
                # The plan decides the effective settings: without a pipeline, its schedule has no effect.
                settings |= state.settings
                plans.append((control.name, position, state))
            table[control.name].append((_changes(base, settings, control.name), problem))
    costs = glances(advice, [(state.advice.job, state.plan, state.estimate) for *_, state in plans])
    for (name, position, _), glance in zip(plans, costs, strict=True):
        table[name][position] = table[name][position][0], glance
    return table


def _changes(base: Settings, settings: Settings, moved: str) -> Settings:
    """Return the settings that follow a moved one."""
    return {name: value for name, value in settings.items() if value != base.get(name) and name != moved}


def terms_of(library: str) -> list[Data]:
    """Terms for the interface of a library: those of its own plan fields and controls, and those of all libraries."""
    own = plan_fields(library) | set(get_library(library).controls)
    elsewhere = {name for record in libraries() for name in (*plan_fields(record.name), *record.controls)} - own
    return [term for term in data_file("notebook", "glossary")["term"] if set(term["settings"]) - elsewhere]
