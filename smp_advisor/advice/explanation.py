"""The explanation of a plan: the library's best practices in order, argued with estimates of alternative plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.advice import comparisons as rivals
from smp_advisor.advice.conclusion import (
    Conclusion,
    against,
    brief_not_used,
    brief_used,
    figures,
    not_possible,
)
from smp_advisor.advice.ladder import off_settings, technique_data, technique_fields
from smp_advisor.advice.practices import Step, facts_of, order, practice, subset_tip
from smp_advisor.advice.variants import PlannedRun, WhatIf, evaluate_best, vary, without
from smp_advisor.core import GIB
from smp_advisor.core.words import plural
from smp_advisor.costs.wording import duration, first_sentence, fits, gib, listed, percent, step_time
from smp_advisor.costs.world import World
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.library import get_library, supported_families
from smp_advisor.libraries.schema import Condition, schema
from smp_advisor.libraries.smp_v2 import SMDDP_INSTANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from smp_advisor.advice.variants import Estimates, Plans

    Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Argument:
    """The argument for or against one technique: plans to compare with, and the conclusion from their estimates."""

    comparisons: Callable[[PlannedRun], dict[str, WhatIf]]
    conclude: Callable[[PlannedRun, Plans, Estimates], Conclusion]


_FAMILIES = {
    "tensor_parallel_degree": "tensor_parallel",
    "context_parallelism": "context_parallel",
    "expert_parallelism": "expert_parallel",
}
"""Techniques that a library has for some families of models only, by the argument of their practice."""
_REQUIRE_A_PLAN = {"tensor_parallelism", "pipeline_parallelism"}
"""Arguments of techniques that are not possible where no plan uses them."""
_OFF = ""
"""Key of the plan without the technique; other keys are the setting that turns it on."""


def _facts(run: PlannedRun) -> dict[str, Any]:
    """Return the facts of a run for the sentences in ``techniques.toml`` and ``practices.toml``."""
    plan, machine, estimate, model = run.plan, run.cluster.instance, run.estimate, run.model
    peak, time, fp32_gib = estimate.memory.peak, estimate.time, 4 * model.parameter_count / GIB
    tensor, stages = plan.tensor_parallel_degree, plan.pipeline_parallel_degree
    spread, processes = plan.placement_strategy == "spread", min(run.cluster.gpus_per_node, run.cluster.gpus)
    # With "spread" the members of a tensor-parallel group are on different nodes.
    group = tensor * (run.cluster.gpus // tensor if spread else 1)
    head = 0 if model.head.tied else model.head.parameters
    vocabulary = (model.token_embedding_parameters + head) / model.parameter_count
    recomputed = f"{gib(peak.recomputation_gib)} at the peak, and " if peak.recomputation_gib >= 0.05 else ""
    # A setting that the plan leaves open has the library's default.
    horizon = plan.activation_loading_horizon
    if horizon is None:
        horizon = schema(plan.library).defaults(plan.version).get("activation_loading_horizon")
    return facts_of(run) | {
        "step_time": step_time(estimate),
        "exchange": duration(estimate, time.tensor_parallel_seconds),
        "waiting": duration(estimate, time.pipeline_bubble_seconds),
        "optimizer_parts": "The optimizer state is"
        if run.job.precision == "fp32"
        else "Optimizer state and copies are",
        "optimizer_gib": gib(peak.optimizer_state_gib + peak.fp32_copies_gib),
        "replica_count": plural(run.replicas, "replica"),
        "activations_gib": gib(peak.activations_gib),
        "recomputed_gib": recomputed,
        "recomputed_share": f"{time.recomputation_seconds / estimate.step_seconds * 100:.0f} %",
        "divided_families": ", ".join(supported_families("tensor_parallel", plan.library)),
        "power_of_two": tensor & (tensor - 1) == 0,
        "tensor_inside": group <= machine.gpus and machine.gpus % group == 0,
        "vocabulary": percent(vocabulary),
        "vocabulary_share": vocabulary,
        "stages": stages,
        "stages_place": _place_of_stages(run),
        "microbatch_count": plural(plan.microbatches, "microbatch", "microbatches"),
        "in_flight": estimate.microbatches_in_flight,
        "moves_running": bool(layout_of_plan(plan, run.job, run.cluster).offload_running),
        "host_gib_used": gib(estimate.host_memory_gib_per_node),
        "horizon": horizon,
        "experts": model.shape.experts,
        "job_fp8": run.job.fp8,
        "length": run.sequence_length,
        "smddp_instance": machine.name in SMDDP_INSTANCES,
        "smddp_instances": listed(SMDDP_INSTANCES),
        "efa": machine.efa,
        "network_gbps": f"{machine.inter_node_gbps:g}",
        "fp32_gib": gib(fp32_gib),
        "host_gib": gib(machine.host_memory_gib),
        "processes_per_node": processes,
        "host_holds_all": processes * fp32_gib <= machine.host_memory_gib,
        **(rivals.facts_of_tests(run) if get_library(plan.library).compiles else {}),
    }


def _place(argument: str, run: PlannedRun) -> str:
    """Return whether the groups of a degree are inside a node."""
    (degree,), node = technique_fields(argument), run.cluster.gpus_per_node
    world = World.of(run.model, run.cluster, run.job, layout_of_plan(run.plan, run.job, run.cluster))
    strides = {"tensor_parallel_degree": world.tensor_stride, "partitions": world.pipeline_stride}
    span = int(getattr(run.plan, degree) * strides.get(degree, world.data_stride))  # GPUs over which a group extends
    if span <= node and node % span == 0:
        return f"inside a node of {node} GPUs"
    return f"across nodes of {node} GPUs, over the network"


def _place_of_stages(run: PlannedRun) -> str:
    """Return where the stages of a pipeline are: placement "cluster" keeps tensor-parallel ranks next to each other."""
    plan, node = run.plan, run.cluster.instance.gpus
    stride = run.replicas if plan.placement_strategy == "spread" else plan.tensor_parallel_degree
    if stride * plan.pipeline_parallel_degree <= node:
        return "are within a node"
    if stride >= node:
        return "are on different nodes, as AWS advises"
    return f"are on several nodes, with up to {node // stride} of them per node"


def _sentences(argument: str, part: str, facts: Facts) -> list[str]:
    """Return the sentences of ``techniques.toml`` whose conditions hold, with their slots filled."""
    cases = technique_data(argument).get(part, ())
    return [case["text"].format_map(facts) for case in cases if _holds(case, facts)]


def _holds(case: Mapping[str, Any], facts: Facts) -> bool:
    return all(Condition.parse(name, text).holds(facts, facts) for name, text in case.get("when", {}).items())


def _obstacle(argument: str, run: PlannedRun) -> str:
    """Return why a technique cannot be used at all; empty if it can."""
    for sentence in _sentences(argument, "obstacle", _facts(run)):
        return sentence
    technique = _FAMILIES.get(argument, "")
    families = supported_families(technique, run.plan.library) if technique else ()
    if not technique or run.model.family in families:
        return ""
    name, number = technique.replace("_parallel", " parallelism"), plural(len(families), "family", "families")
    return f"The library has {name} for the {number} {listed(families)} only, not for {run.model.family}."


def _switched(argument: str, run: PlannedRun) -> dict[str, WhatIf]:
    """Return the plan without a technique if it uses it, otherwise with its smallest useful settings."""
    if off := off_settings(argument, run):
        return {_OFF: without(run, **off)}
    if _obstacle(argument, run):
        return {}
    match argument:
        case "optimizer_state_sharding":
            on = without(run, shard_optimizer_state=True, sharded_data_parallel_degree=1)
            return {"shard_optimizer_state": on}
        case "activation_checkpointing":
            return {'activation_checkpointing="each"': vary(run, activation_checkpointing="each")}
        case "offloading":
            return {"offload_activations": vary(run, offload_activations=True)}
        case "pipeline_parallelism":
            return {"pipeline_parallel_degree=2": _two_stages(run)}
        case "tensor_parallelism":
            degrees = [2**k for k in range(1, run.cluster.instance.gpus.bit_length())]
        case _:
            degrees = [next((degree for degree in (2, 4, 8, 3, 5, 7) if run.cluster.gpus % degree == 0), 2)]
    (field,) = technique_fields(argument)
    changes: list[dict[str, Any]] = [{field: degree} for degree in degrees]
    return {f"{field}={change[field]}": vary(run, **change) for change in changes}


def _two_stages(run: PlannedRun) -> WhatIf:
    """Return the plan with two stages; a single microbatch would not overlap them: AWS starts with 4 or 2."""
    plain = vary(run, pipeline_parallel_degree=2)
    if run.plan.microbatches == 1 and plain.plan is not None:
        for microbatches in (4, 2):
            if plain.plan.batch_size % microbatches == 0:
                more = vary(run, pipeline_parallel_degree=2, microbatches=microbatches)
                return more.with_aside(f"{microbatches} microbatches instead of 1")
    return plain


def _on_switched(argument: str, run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    facts = _facts(run)
    if not comparisons:
        return not_possible(_obstacle(argument, run))
    if argument in {"partitions", *_FAMILIES}:
        facts["place"] = _place(argument, run)
    name = technique_data(argument).get("name", "it")
    sentences = _sentences(argument, "limit", facts)
    if _OFF in comparisons:
        variant, estimate = comparisons[_OFF], estimates.get(_OFF)
        sentences += [*_sentences(argument, "lead", facts), figures(run, variant, estimate, f"Without {name}")]
        sentences += _sentences(argument, "note", facts)
        return against("used", variant, estimate, " ".join(sentences))
    possible = [key for key in comparisons if key in estimates]
    if not possible and argument in _REQUIRE_A_PLAN:
        return not_possible(next(iter(comparisons.values())).obstacle)
    # The smallest degree that fits explains most; if the plan fits already or none does, the smallest there is.
    fitting = [] if run.fits else [key for key in possible if fits(estimates[key], run.min_fit_probability)]
    key = (fitting or possible or list(comparisons))[0]
    variant, estimate = comparisons[key], estimates.get(key)
    sentences += [figures(run, variant, estimate, f"With {key}"), *_sentences(argument, "note", facts)]
    return against("not used", variant, estimate, " ".join(sentences))


def _stated(technique: str, run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    """Return the first statement of ``practices.toml`` on a technique whose conditions hold, with its slots filled."""
    facts = _facts(run)
    statement = next(case for case in practice(technique, run.plan.library).statement if _holds(case, facts))
    return Conclusion(
        decision=statement["decision"],
        because=statement["because"].format_map(facts),
        brief=statement.get("brief", ""),
        alternative=comparisons["alternative"].plan if "alternative" in estimates else None,
    )


def _argument(technique: str, library: str) -> Argument:
    """Return the argument of a practice: its own statements, or the comparison that it names."""
    source = practice(technique, library)
    if not source.statement:
        return ARGUMENTS[source.argument]
    compares = rivals.with_tested_batch if technique == "batch" else lambda _: {}  # of Training Compiler
    return Argument(compares, partial(_stated, technique))


_SWITCHES = (
    "activation_checkpointing", "tensor_parallelism", "pipeline_parallelism", "offloading", "partitions", *_FAMILIES
)  # fmt: skip


def _kinds(run: PlannedRun) -> dict[str, WhatIf]:
    """Return no sharding and, instead of SMP v1's sharded data parallelism, optimizer-state sharding alone."""
    result = _switched("optimizer_state_sharding", run)
    if run.plan.sharded_data_parallel_degree > 1:
        result["optimizer"] = without(run, shard_optimizer_state=True, sharded_data_parallel_degree=1)
    return result


def _on_kinds(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    if "optimizer" in comparisons:
        return rivals.sharded(run, (comparisons[_OFF], estimates.get(_OFF)), comparisons["optimizer"], estimates)
    return _on_switched("optimizer_state_sharding", run, comparisons, estimates)


ARGUMENTS: dict[str, Argument] = {
    **{name: Argument(partial(_switched, name), partial(_on_switched, name)) for name in _SWITCHES},
    "optimizer_state_sharding": Argument(_kinds, _on_kinds),
    "sharding": Argument(rivals.other_degrees, rivals.conclude_on_degrees),
    "batch": Argument(rivals.larger_batches, rivals.conclude_on_batch),
    "microbatches": Argument(rivals.other_microbatches, rivals.conclude_on_batch),
    "instance": Argument(rivals.on_other_instances, rivals.conclude_on_instance),
}
"""Arguments by the name that ``practices.toml`` has for them: `Practice.argument`."""


def explain(run: PlannedRun, techniques: Collection[str] | None = None) -> tuple[Step, ...]:
    """Explain for each of the library's best practices, in order, whether the plan uses it and why."""
    library, estimate = run.plan.library, run.estimate
    arguments = {name: _argument(name, library) for name in order(library) if techniques is None or name in techniques}
    plans = {
        (name, key): comparison
        for name, argument in arguments.items()
        for key, comparison in argument.comparisons(run).items()
    }
    compared, estimates = evaluate_best(run, plans)  # of all techniques together: one pass of the cost model
    steps: list[Step] = []
    tip = subset_tip(library) if run.fits else ""
    for technique, argument in arguments.items():
        own = {key: value for (name, key), value in estimates.items() if name == technique}
        comparisons = {key: value for (name, key), value in compared.items() if name == technique}
        conclusion = argument.conclude(run, comparisons, own)
        rival = next((key for key in own if comparisons[key].plan == conclusion.alternative), None)
        outcome, aside = (None, "") if rival is None else (own[rival], comparisons[rival].aside)
        source = practice(conclusion.practice or technique, library)
        brief, details = conclusion.brief, conclusion.because
        fields = technique_fields(practice(technique, library).argument)
        if not brief and outcome is not None and fields and conclusion.decision != "not possible":
            is_used = conclusion.decision == "used"
            brief = brief_used(run, outcome, aside=aside) if is_used else brief_not_used(run, outcome)
        brief = brief or first_sentence(details)
        details = details if details.startswith(brief) else f"{brief} {details}"
        no_loss = outcome is not None and outcome.samples_per_second <= estimate.samples_per_second
        if tip and conclusion.decision == "not used" and no_loss:
            # Given once, with the first technique whose absence costs nothing.
            details, tip = f"{details} AWS's tip applies: {tip}.", ""
        steps.append(
            Step(
                order=order(library).index(technique) + 1,
                technique=technique,
                title=source.title,
                decision=conclusion.decision,
                because=f"Fixed by you. {brief}" if run.pins & fields else brief,
                details=details,
                trade_off=source.trade_off,
                source_title=source.source_title,
                source_url=source.source_url,
                alternative=conclusion.alternative,
                outcome=outcome,
            )
        )
    return tuple(steps)
