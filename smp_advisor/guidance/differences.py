"""Settings in which a plan differs from a reference configuration, each argued by trying the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.step import Difference
from smp_advisor.guidance.what_if import WhatIf, evaluate, vary
from smp_advisor.guidance.wording import SAME, compared, fit, seconds
from smp_advisor.libraries.families import supports_tensor_parallelism
from smp_advisor.libraries.groups import samples_per_tensor_parallel_group
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.aws_reference import ReferenceRow
    from smp_advisor.guidance.case import Case
    from smp_advisor.libraries.plan import Plan

__all__ = ["differences"]

_TIME_PARTS = {
    "forward_seconds": "forward passes",
    "backward_seconds": "backward passes",
    "recomputation_seconds": "recomputation",
    "tensor_parallel_seconds": "the all-reduces of tensor parallelism",
    "pipeline_bubble_seconds": "waiting in the pipeline",
    "data_parallel_seconds": "reductions and gathers between replicas",
    "optimizer_seconds": "the optimizer",
    "offload_seconds": "host transfers",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """One setting of the plan that differs."""

    name: str
    reference: str
    own: str
    phrase: str
    """The reference's value in a sentence: "tensor_parallel_degree=4"."""
    question: WhatIf


def differences(case: Case, row: ReferenceRow) -> tuple[Difference, ...]:
    """What was asked for first (model, job, cluster), then the settings of the plan."""
    settings = _settings(case, row.plan)
    answers = evaluate(case.model, {setting.name: setting.question for setting in settings})
    return (
        *_given(case, row),
        *(
            Difference(
                setting=setting.name,
                reference=setting.reference,
                recommended=setting.own,
                because=_because(case, setting, answers.get(setting.name)),
            )
            for setting in settings
        ),
    )


def _given(case: Case, row: ReferenceRow) -> list[Difference]:
    """Differences that the user's request makes; their reason is the request."""
    length = case.model.sequence_length(case.job.sequence_length)
    pairs = (
        ("model", row.model.name, case.model.name, row.model.parameter_count, case.model.parameter_count),
        ("sequence length", str(row.job.sequence_length), str(length), row.job.sequence_length, length),
        (
            "cluster",
            f"{row.cluster.nodes} x {row.cluster.instance.name}",
            f"{case.cluster.nodes} x {case.cluster.instance.name}",
            row.cluster.gpus,
            case.cluster.gpus,
        ),
        ("precision", row.job.precision, case.job.precision, 1, 1),
    )
    unit = {"model": "parameters", "sequence length": "tokens a sample", "cluster": "GPUs"}
    result = []
    for name, reference, own, before, after in pairs:
        if reference == own or (name == "model" and row.model.shape == case.model.shape):
            continue
        because = "As asked for."
        written = format_count if name == "model" else "{:,}".format
        counts = (written(after), written(before)) if name in unit else ("", "")
        if counts[0] != counts[1]:
            because = f"As asked for: {counts[0]} {unit[name]} instead of {counts[1]}."
        result.append(Difference(setting=name, reference=reference, recommended=own, because=because))
    return result


def _settings(case: Case, reference: Plan) -> list[_Setting]:
    plan = case.plan
    found: list[_Setting] = []

    def add(name: str, theirs: object, own: object, phrase: str, **changes: Any) -> None:
        if theirs != own:
            question = vary(case, **changes)
            found.append(
                _Setting(name=name, reference=_shown(theirs), own=_shown(own), phrase=phrase, question=question)
            )

    degrees = ["tensor_parallel_degree", "pipeline_parallel_degree"]
    if not supports_tensor_parallelism(case.model.family):
        degrees.remove("tensor_parallel_degree")  # the library would leave this model's layers whole
    for name in degrees:
        theirs = getattr(reference, name)
        add(name, theirs, getattr(plan, name), f"{name}={theirs!r}", **{name: theirs})
    add(
        "sharding of the state",
        _sharding(reference),
        _sharding(plan),
        _sharding(reference),
        shard_optimizer_state=reference.shard_optimizer_state,
        sharded_data_parallel_degree=reference.sharded_data_parallel_degree,
    )
    for name in ("activation_checkpointing", "offload_activations"):
        theirs = getattr(reference, name)
        add(name, theirs, getattr(plan, name), f"{name}={theirs!r}", **{name: theirs})
    theirs, own = samples_per_tensor_parallel_group(reference), samples_per_tensor_parallel_group(plan)
    if case.job.global_batch_size is None:
        per_rank = 1 if plan.prescaled_batch else plan.tensor_parallel_degree
        # A number that does not divide into the plan's microbatches cannot be tried by itself.
        if theirs % (per_rank * plan.microbatches) == 0:
            phrase = f"{theirs} samples a model replica"
            add("samples a model replica", theirs, own, phrase, batch_size=theirs // per_rank)
    if reference.microbatches != plan.microbatches:
        wanted = reference.microbatches
        # In the plan's own batch, which the reference's number need not divide.
        add("microbatches", wanted, plan.microbatches, f"microbatches={wanted}", microbatches=wanted)
    if plan.pipeline_parallel_degree > 1 and reference.pipeline_parallel_degree > 1:
        active = min(reference.active_in_flight, plan.microbatches)
        theirs, own = reference.active_in_flight, plan.active_in_flight
        add("active_microbatches", theirs, own, f"active_microbatches={active}", active_microbatches=active)
    return found


def _shown(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _sharding(plan: Plan) -> str:
    if plan.sharded_data_parallel_degree > 1:
        return f"sharded_data_parallel_degree {plan.sharded_data_parallel_degree}"
    return "shard_optimizer_state" if plan.shard_optimizer_state else "none"


def _because(case: Case, setting: _Setting, estimate: Estimate | None) -> str:
    if estimate is None:
        return f"The reference's setting is not possible here: {setting.question.obstacle}"
    sentence = (
        f"With {setting.phrase} as in the reference{setting.question.aside} the plan"
        f" {compared(case.estimate, estimate)}; it then {fit(estimate, case.min_fit_probability)}."
    )
    part = _telling_part(case.estimate, estimate)
    return f"{sentence} {part}" if part else sentence


def _telling_part(now: Estimate, other: Estimate) -> str:
    """The part of the step that explains most of a change in step time; empty where nothing changes."""
    if now.global_batch_size != other.global_batch_size:
        return ""
    total = other.step_seconds - now.step_seconds
    if abs(total) < SAME * now.step_seconds:
        return ""
    sign = 1 if total > 0 else -1
    name = max(_TIME_PARTS, key=lambda part: sign * (getattr(other.time, part) - getattr(now.time, part)))
    before, after = seconds(getattr(now.time, name)), seconds(getattr(other.time, name))
    if before == after:
        return ""
    return f"Most of the change is in {_TIME_PARTS[name]}: {after} instead of {before}."
