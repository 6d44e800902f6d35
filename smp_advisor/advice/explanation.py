"""The explanation of a plan: the library's best practices in order, argued with estimates of alternative plans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.advice import memory, statements
from smp_advisor.advice.choice import accumulation, microbatches
from smp_advisor.advice.conclusion import (
    Argument,
    Conclusion,
    against,
    brief_not_used,
    brief_used,
    not_possible,
    why_not_used,
    why_used,
)
from smp_advisor.advice.ladder import technique_fields
from smp_advisor.advice.practices import Step, order, practice, subset_tip
from smp_advisor.advice.variants import PlannedRun, WhatIf, evaluate_best, vary, without
from smp_advisor.costs.wording import duration, first_sentence, fits, listed, percent, plural, step_time
from smp_advisor.costs.world import World
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.library import supported_families, supports_tensor_parallelism

if TYPE_CHECKING:
    from collections.abc import Collection

    from smp_advisor.advice.variants import Estimates, Plans


_DOMINATED = 0.4
"""Share of the parameters in the vocabulary tables from which dividing them alone is an option."""


def _tensor_degrees(run: PlannedRun) -> dict[str, WhatIf]:
    """Return degree 1 if more are used; otherwise the powers of two within a node."""
    if run.plan.tensor_parallel_degree > 1:
        return {"1": without(run, tensor_parallel_degree=1)}
    degrees = (2**k for k in range(1, run.cluster.instance.gpus.bit_length()))
    return {str(degree): vary(run, tensor_parallel_degree=degree) for degree in degrees}


def _on_tensor(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    if run.plan.tensor_parallel_degree == 1:
        return _without_tensor(run, comparisons, estimates)
    plan, per_node, family = run.plan, run.cluster.instance.gpus, run.model.family
    degree = plan.tensor_parallel_degree
    exchange = duration(run.estimate, run.estimate.time.tensor_parallel_seconds)
    sentences = [
        (
            f"Each layer is divided over {degree} GPUs. The exchange of activations takes {exchange} of"
            f" {step_time(run.estimate)} per step."
        )
    ]
    if not supports_tensor_parallelism(family, plan.library):
        sentences.append(
            f"This requires that the script registers a distributed form of {family}'s layers with"
            " smp.tp_register_with_module: the library does not divide them by itself."
        )
    if degree & (degree - 1):
        sentences.append(f"AWS advises against degrees that are not a power of two, such as {degree}.")
    stride = run.cluster.gpus // degree if plan.placement_strategy == "spread" else 1
    if degree * stride > per_node or per_node % (degree * stride) != 0:
        sentences.append(
            f"The group is not within the {per_node} GPUs of a node. AWS advises to keep it inside, because the"
            " exchange otherwise crosses the network."
        )
    sentences.append(why_used(run, comparisons["1"], estimates.get("1")))
    because = " ".join(filter(None, (*sentences, _vocabulary(run))))
    return against(run, "used", comparisons["1"], estimates.get("1"), because)


def _vocabulary(run: PlannedRun) -> str:
    """Return the option of dividing the vocabulary tables alone; empty if they have few of the parameters."""
    own_head = 0 if run.model.head.tied else run.model.head.parameters
    share = (run.model.token_embedding_parameters + own_head) / run.model.parameter_count
    if share < _DOMINATED:
        return ""
    return (
        f"The vocabulary tables have {percent(share)} of the parameters. Dividing them alone"
        " (smp.set_tensor_parallelism on these modules) would divide most of the state with less exchange."
    )


def _without_tensor(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    family, library = run.model.family, run.plan.library
    possible = [degree for degree in comparisons if degree in estimates]
    if run.cluster.instance.gpus == 1:
        name = run.cluster.instance.name
        return not_possible(f"{name} has one GPU per node, and tensor parallelism runs inside a node.")
    if not supports_tensor_parallelism(family, library):
        families = ", ".join(supported_families("tensor_parallel", library))
        return not_possible(
            f"The library divides the layers of {families} by itself, but not those"
            f" of {family}: they stay undivided unless the script registers a distributed form with"
            " smp.tp_register_with_module."
        )
    if not possible:
        # A node with more than one GPU allows degree 2, so there is a comparison.
        degrees = listed(list(comparisons))
        lead = f"None of the degrees within a node ({degrees}) is possible. " if len(comparisons) > 1 else ""
        return not_possible(lead + next(iter(comparisons.values())).obstacle)
    # The smallest degree that fits explains most; if the plan fits already or none does, the smallest there is.
    fitting = [] if run.fits else [d for d in possible if fits(estimates[d], run.min_fit_probability)]
    degree = (fitting or possible)[0]
    reason = why_not_used(run, comparisons[degree], estimates[degree], name=f"tensor_parallel_degree={degree}")
    because = " ".join(filter(None, (reason, _vocabulary(run))))
    return against(run, "not used", comparisons[degree], estimates[degree], because)


def _stages(run: PlannedRun) -> dict[str, WhatIf]:
    """Return one stage if there are several, two stages otherwise."""
    if run.plan.pipeline_parallel_degree > 1:
        return {"without": without(run, pipeline_parallel_degree=1)}
    if run.plan.sharded_data_parallel_degree > 1:
        return {}
    plain = vary(run, pipeline_parallel_degree=2)
    # A single microbatch would not overlap them, so AWS's starting points of 4 or 2 are tried first.
    if run.plan.microbatches == 1 and plain.plan is not None:
        for microbatches in (4, 2):
            if plain.plan.batch_size % microbatches == 0:
                more = vary(run, pipeline_parallel_degree=2, microbatches=microbatches)
                return {"with": more.with_aside(f"{microbatches} microbatches instead of 1")}
    return {"with": plain}


def _on_pipeline(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    plan, current = run.plan, run.estimate
    if not comparisons:
        because = "This plan uses sharded data parallelism, which excludes pipeline parallelism."
        return not_possible(because)
    ((key, variant),) = comparisons.items()
    estimate = estimates.get(key)
    if plan.pipeline_parallel_degree == 1:
        if estimate is None:
            return not_possible(variant.obstacle)
        reason = why_not_used(run, variant, estimate, name="pipeline_parallel_degree=2")
        return against(run, "not used", variant, estimate, reason)
    waiting = duration(current, current.time.pipeline_bubble_seconds)
    # Placement "cluster" keeps tensor-parallel ranks next to each other.
    per_node = run.cluster.instance.gpus
    stride = run.replicas if plan.placement_strategy == "spread" else plan.tensor_parallel_degree
    if stride * plan.pipeline_parallel_degree <= per_node:
        place = "are within a node"
    elif stride >= per_node:
        place = "are on different nodes, as AWS advises"
    else:
        place = f"are on several nodes, with up to {per_node // stride} of them per node"
    because = (
        f"The layers are divided into {plan.pipeline_parallel_degree} stages, which {place}. With"
        f" {plural(plan.microbatches, 'microbatch', 'microbatches')}, at most {current.microbatches_in_flight} in"
        f" flight, waiting and transfers between stages take {waiting} of {step_time(current)} per step."
        f" {why_used(run, variant, estimate)}"
    )
    further = (("waiting and transfers between stages", waiting),)
    return against(run, "used", variant, estimate, because, further=further)


def _obstacle(key: str, technique: str, run: PlannedRun) -> str:
    """Return why a degree cannot be used at all; empty if it can."""
    if key == "expert_parallel_degree" and run.model.shape.experts == 1:
        return "The model has no experts."
    if key == "partitions" and run.cluster.gpus == 1:
        return "A single GPU holds all layers."
    families = supported_families(technique, run.plan.library) if technique else ()
    if not technique or run.model.family in families:
        return ""
    name = technique.replace("_", " ").replace("parallel", "parallelism")
    return (
        f"The library has {name} for the {plural(len(families), 'family', 'families')} {listed(families)} only, not"
        f" for {run.model.family}."
    )


def _degrees(key: str, technique: str, run: PlannedRun) -> dict[str, WhatIf]:
    """Return the plan without the degree if it is used, with its smallest useful value otherwise."""
    if _obstacle(key, technique, run):
        return {}
    if getattr(run.plan, key) > 1:
        return {"1": without(run, **{key: 1})}
    smallest = next((degree for degree in (2, 4, 8, 3, 5, 7) if run.cluster.gpus % degree == 0), 2)
    changes: dict[str, Any] = {key: smallest}
    return {str(smallest): vary(run, **changes)}


def _on_degree(key: str, technique: str, run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    if not comparisons:
        return not_possible(_obstacle(key, technique, run))
    degree, node = getattr(run.plan, key), run.cluster.gpus_per_node
    ((value, variant),) = comparisons.items()
    estimate = estimates.get(value)
    if degree > 1:
        world = World.of(run.model, run.cluster, run.job, layout_of_plan(run.plan, run.job, run.cluster))
        strides = {"tensor_parallel_degree": world.tensor_stride, "pipeline_parallel_degree": world.pipeline_stride}
        span = int(degree * strides.get(key, world.data_stride))  # GPUs over which one group extends
        inside = span <= node and node % span == 0
        place = f"inside a node of {node} GPUs" if inside else f"across nodes of {node} GPUs, over the network"
        return against(
            run, "used", variant, estimate, f"{key}={degree} runs {place}. {why_used(run, variant, estimate)}"
        )
    brief = f"There is no such plan here: {variant.obstacle}" if estimate is None else ""
    return against(
        run, "not used", variant, estimate, why_not_used(run, variant, estimate, name=f"{key}={value}"), brief=brief
    )


def degree(key: str, technique: str = "") -> Argument:
    """The argument on a field that is a degree; `technique` is that for which the library lists model families."""
    return Argument(partial(_degrees, key, technique), partial(_on_degree, key, technique))


ARGUMENTS: dict[str, Argument] = {
    **memory.ARGUMENTS,
    "tensor_parallelism": Argument(_tensor_degrees, _on_tensor),
    "pipeline_parallelism": Argument(_stages, _on_pipeline),
    "partitions": degree("partitions"),
    "tensor_parallel_degree": degree("tensor_parallel_degree", "tensor_parallel"),
    "context_parallelism": degree("context_parallel_degree", "context_parallel"),
    "expert_parallelism": degree("expert_parallel_degree", "expert_parallel"),
    "batch": accumulation,
    "microbatches": microbatches,
    "instance": statements.instance,
}
"""Arguments by the name that ``practices.toml`` has for them: `Practice.argument`."""


def explain(run: PlannedRun, techniques: Collection[str] | None = None) -> tuple[Step, ...]:
    """Explain for each of the library's best practices, in order, whether the plan uses it and why."""
    library, estimate = run.plan.library, run.estimate
    arguments = {
        name: statements.stated(name) if (source := practice(name, library)).statement else ARGUMENTS[source.argument]
        for name in order(library)
        if techniques is None or name in techniques
    }
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
                figures=conclusion.figures,
                source_title=source.source_title,
                source_url=source.source_url,
                alternative=conclusion.alternative,
                outcome=outcome,
            )
        )
    return tuple(steps)
