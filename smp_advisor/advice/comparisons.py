"""Plans to compare with, and conclusions from them: on sharding, batch, instance, and models that AWS tested."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import Conclusion, against, brief_change, brief_used, figures, speed_of
from smp_advisor.advice.variants import PlannedRun, WhatIf, vary, without
from smp_advisor.cluster import Cluster, Instance
from smp_advisor.core.files import sentence
from smp_advisor.core.words import plural
from smp_advisor.costs.wording import batch_limit, compared, fit, fits, gib, global_batch, run_time, step_time
from smp_advisor.libraries import get_library
from smp_advisor.libraries.groups import divisors, shard_degree
from smp_advisor.libraries.sharding import RESHARDING
from smp_advisor.libraries.training_compiler import TestedModel, nearest_tested
from smp_advisor.libraries.version import facts as library_facts
from smp_advisor.libraries.version import image, instance_family, suggested_instances

if TYPE_CHECKING:
    from smp_advisor.advice.practices import Decision
    from smp_advisor.advice.variants import Estimates, Plans
    from smp_advisor.costs.estimate import Estimate

    Compared = tuple[WhatIf, Estimate | None]


def sharded(run: PlannedRun, unsharded: Compared, variant: WhatIf, estimates: Estimates) -> Conclusion:
    """Conclude on SMP v1's sharded data parallelism: without any sharding, and with that of the optimizer state."""
    (plain, nothing), estimate = unsharded, estimates.get("optimizer")
    peak = run.estimate.memory.peak
    state_gib = peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib + peak.fp32_copies_gib
    briefs = ["" if nothing is None else brief_used(run, nothing, name="sharding", aside=plain.aside)]
    alone = figures(run, variant, estimate, "With shard_optimizer_state in its place")
    if estimate is not None and fits(estimate, run.min_fit_probability):
        briefs.append(f"Sharding only the optimizer state is {speed_of(run, estimate)}.")
    elif estimate is not None and run.fits:
        briefs.append("Sharding only the optimizer state is not enough.")
    degree, why = run.plan.sharded_data_parallel_degree, figures(run, plain, nothing, "Without any sharding")
    because = sentence("advice", "sharded", degree=degree, state=gib(state_gib), alone=alone, why=why)
    return Conclusion(
        decision="used",
        because=because,
        brief=" ".join(filter(None, briefs)),
        alternative=variant.plan if estimate else None,
        practice="sharded_data_parallelism",
    )


def other_degrees(run: PlannedRun) -> dict[str, WhatIf]:
    """Every lower shard degree and the next higher one; the other strategy if the library has no shard degree."""
    plan, field = run.plan, get_library(run.plan.library).shard_field
    if not field:
        names = [name for name in RESHARDING if name != plan.sharding_strategy and run.cluster.nodes > 1]
        return {name: vary(run, sharding_strategy=name) for name in names}
    current = shard_degree(plan, run.cluster)
    degrees = divisors(run.cluster.gpus // (plan.tensor_parallel_degree * plan.expert_parallel_degree))
    higher = [degree for degree in degrees if degree > current][:1]
    changes: list[dict[str, Any]] = [{field: degree} for degree in degrees if degree < current or degree in higher]
    return {str(change[field]): without(run, **change) for change in changes}


def conclude_on_degrees(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    """Report the sharded state, and the lowest degree that fits."""
    current, peak = shard_degree(run.plan, run.cluster), run.estimate.memory.peak
    state = peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib
    replicas = run.cluster.gpus // (current * run.plan.tensor_parallel_degree * run.plan.expert_parallel_degree)
    sentences = [sentence("advice", "shards", gpus=plural(current, "GPU"), state=gib(state))]
    if replicas > 1:
        sentences.append(f"{replicas} such groups reduce gradients between them.")
    if not get_library(run.plan.library).shard_field:
        return _on_strategy(run, comparisons, estimates, sentences)
    # AWS advises the lowest degree that fits, so that a lower one that fits is the news, and else that none does.
    by_degree = {int(key): estimate for key, estimate in estimates.items()}
    lower = {degree: estimate for degree, estimate in by_degree.items() if degree < current}
    enough = [degree for degree, estimate in lower.items() if fits(estimate, run.min_fit_probability)]
    brief = "Parameters, gradients and optimizer state are sharded."
    if current == 1:
        brief = f"Each GPU stores the entire state{', which fits' if run.fits else ''}."
    elif run.fits and lower and not enough:
        brief = "Required: it is the lowest degree that fits, as AWS advises."
    # A lower degree that also fits exchanges less: what would it save?
    if enough:
        least = min(enough)
        values = {"least": least, "aside": comparisons[str(least)].aside}
        sentences.append(sentence("advice", "enough", **values, compared=compared(run.estimate, lower[least])))
        if run.fits:
            aside = comparisons["1"].aside if 1 in by_degree else ""
            brief = brief_used(run, by_degree[1], name="sharding", aside=aside) if 1 in by_degree else ""
            if least > 1:
                brief = f"{brief} A degree of {least} also fits. {brief_change(run, lower[least])} with it.".strip()
    elif lower:
        sentences += ["It is the lowest degree that fits."] if run.fits else []
        sentences.append(f"With degree {max(lower)}, the plan {fit(lower[max(lower)], run.min_fit_probability)}.")
    key = str(max(lower)) if lower else next(iter(estimates), "")
    return Conclusion(
        decision="used" if current > 1 else "not used",
        because=" ".join(sentences),
        brief=brief,
        alternative=comparisons[key].plan if key in estimates else None,
    )


def _on_strategy(run: PlannedRun, comparisons: Plans, estimates: Estimates, sentences: list[str]) -> Conclusion:
    brief = "The library shards parameters, gradients and optimizer state over all GPUs."
    estimate: Estimate | None = None
    variant = WhatIf(cluster=run.cluster, job=run.job)
    strategy = next(iter(comparisons), "")
    if strategy:
        variant, estimate = comparisons[strategy], estimates.get(strategy)
        sentences.append(figures(run, variant, estimate, f"With sharding_strategy={strategy!r}"))
        if estimate is not None:
            change = brief_change(run, estimate)
            brief = f"With {strategy} instead, {change[:1].lower()}{change[1:]}".rstrip(",") + "."
    return against("used", variant, estimate, " ".join(sentences), brief=brief)


_PARTS = ("microbatches", "gradient_accumulation_steps")


def _may_double(run: PlannedRun) -> bool:
    return run.job.global_batch_size is None and 2 * run.estimate.tokens_per_step <= run.job.max_tokens_per_step


def larger_batches(run: PlannedRun) -> dict[str, WhatIf]:
    """Return twice the batch, and the batch of each replica at once, each if possible."""
    result = {"batch": vary(run, batch_size=2 * run.plan.batch_size)} if _may_double(run) else {}
    for parts in _PARTS:
        if getattr(run.plan, parts) > 1:
            at_once: dict[str, Any] = {parts: 1}
            result["together"] = vary(run, **at_once)
    return result


def other_microbatches(run: PlannedRun) -> dict[str, WhatIf]:
    """Return `larger_batches`; where twice the batch is not possible, twice the microbatches and the active ones."""
    plan, result = run.plan, larger_batches(run)
    if "batch" in result and result["batch"].plan is not None:
        return result
    several_active = plan.pipeline_parallel_degree > 1 and plan.pipeline != "simple"
    if plan.batch_size % (2 * plan.microbatches) == 0:
        more: dict[str, Any] = {"microbatches": 2 * plan.microbatches}
        if several_active:  # only the microbatches change; the library's default of the active ones would follow them
            more["active_microbatches"] = plan.active_in_flight
        result["microbatches"] = vary(run, **more)
    if several_active and plan.active_in_flight < plan.microbatches:
        result["active"] = vary(run, active_microbatches=min(2 * plan.active_in_flight, plan.microbatches))
    return result


def conclude_on_batch(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    """Report the batch of each group of GPUs, and the effect of a larger one and of the batch at once."""
    plan, larger, together = run.plan, estimates.get("batch"), estimates.get("together")
    total = global_batch(run.model, run.estimate)
    group = plan.tensor_parallel_degree * plan.context_parallel_degree * plan.pipeline_parallel_degree
    owner = f"Each group of {group} GPUs" if group > 1 else "Each GPU"
    in_parts = f", in {plan.microbatches} microbatches" if plan.microbatches > 1 else ""
    steps = plan.gradient_accumulation_steps
    times = f", {steps} times before each optimizer step" if steps > 1 else ""
    samples = plural(plan.batch_size * plan.batches_per_group, "sample")
    sentences = [f"{owner} processes {samples}{in_parts}{times}: a global batch of {total}."]
    if plan.microbatches > 1:
        sentences.append(
            f"Every batch must be a multiple of {plan.microbatches}, including the last batch of an epoch: drop it with"
            " drop_last=True."
        )
    # The effect of a larger one, or why there is none.
    if larger is not None:
        sentences.append(figures(run, comparisons["batch"], larger, f"With twice the batch ({2 * plan.batch_size})"))
    elif run.job.global_batch_size is not None:
        sentences.append("The global batch is as requested.")
    elif not _may_double(run):
        most = batch_limit(run.model, run.job.max_tokens_per_step)
        sentences.append(f"Twice the batch would exceed the limit of {most} per step.")
    # Whether the batch in parts pays.
    brief = "The batch of each replica is processed at once."
    if together is not None:
        end = f"; at once would be {speed_of(run, together)}."
        if not fits(together, run.min_fit_probability):
            end = ": at once, it would not fit." if run.fits else "; at once, it would not fit, either."
        elif not run.fits:
            end = "; at once, it would fit."
        brief = f"Each replica processes its batch in parts{end}"
    plans = (comparisons[key].plan for key in ("batch", "microbatches", "active") if key in estimates)
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        brief=brief,
        alternative=next(plans, None),
    )


def _others(run: PlannedRun) -> list[Instance]:
    """Instances that are available, have enough GPUs for a divided model, and allow the same number of GPUs."""
    here = run.cluster.instance
    return [
        machine
        for machine in suggested_instances(run.plan.library)
        if machine.name != here.name and run.cluster.gpus % machine.gpus == 0 and machine.gpus >= min(here.gpus, 4)
    ]


def on_other_instances(run: PlannedRun) -> dict[str, WhatIf]:
    """Return the same plan on as many GPUs of every other instance, by the instance's name."""
    gpus = run.cluster.gpus
    return {machine.name: vary(run, cluster=Cluster(machine, gpus // machine.gpus)) for machine in _others(run)}


def conclude_on_instance(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    """Conclude on the instance: AWS advises EFA between nodes and NVLink inside."""
    here, machines = run.cluster.instance, _others(run)
    decision: Decision = "used" if _follows(here) else "not used" if any(map(_follows, machines)) else "not possible"
    against = "The library runs on no other instance with this number of GPUs."
    # The instance of the comparison: the next larger in GPU memory, otherwise the largest, EFA first.
    larger = [machine for machine in machines if machine.usable_gpu_memory_gib > here.usable_gpu_memory_gib * 1.02]
    if machines:
        nearest = min(larger, key=lambda machine: (not _follows(machine), machine.usable_gpu_memory_gib), default=None)
        compared_with = nearest or max(machines, key=lambda machine: (_follows(machine), machine.usable_gpu_memory_gib))
        same = estimates.get(compared_with.name)
        against = f"The same plan cannot run on {compared_with.name}: {comparisons[compared_with.name].obstacle}"
        if same is not None:
            place = f"{plural(run.cluster.gpus // compared_with.gpus, 'node')} of {compared_with.name}"
            verdict = fit(same, run.min_fit_probability)
            against = f"On {place}, the same plan {compared(run.estimate, same)}. It {verdict}."
    links = [f"{'NVLink' if here.nvlink else 'no NVLink'} inside the node"] if here.gpus > 1 else []
    links += [f"{'EFA' if here.efa else 'no EFA'} between nodes"] if run.cluster.nodes > 1 else []
    brief = f"The cluster has {' and '.join(links)}." if links else "A single GPU trains, without any exchange."
    return Conclusion(decision=decision, because=f"{brief} {against}", brief=brief)


def _follows(machine: Instance) -> bool:
    return machine.efa and machine.nvlink


_SHORTER_STEP = 0.2
"""Assumed reduction of the step time by compilation, for the example of amortization in ``practices.toml``."""


def facts_of_tests(run: PlannedRun) -> dict[str, Any]:
    """Facts of Training Compiler: the nearest model that AWS tested, the container, and the time of the run."""
    row, days, gpus = _tested(run), run.estimate.days, run.cluster.gpus
    container = image(run.plan.library, run.plan.version)
    content = f"PyTorch {container.framework_version}"
    if container.transformers_version:
        content = f"transformers {container.transformers_version} with {content}"
    factor = row.factor if row else 2.0
    result: dict[str, Any] = {
        "discontinued": library_facts(run.plan.library)["discontinued"],
        "container_content": content,
        "samples": plural(run.plan.batch_size, "sample"),
        "tested": row is not None,
        "tested_alike": row is not None and _is_own(run, row),
        "factor": f"{factor:.2f}",
        "factor_root": f"{math.sqrt(factor):.2f}",
        "per_rank": f" Multiply by {gpus} GPUs as well if the native rate was for one GPU." if gpus > 1 else "",
        "less_memory": "" if factor >= 1 else " Here the compiler takes more memory than it saves.",
        "step_time": step_time(run.estimate),
        "run_time": run_time(run.estimate),
        "recovered_minutes": f"{(days or 0.0) * 24 * 60 * _SHORTER_STEP:,.0f}",
    }
    if row is not None:
        result |= {
            "tested_model": row.model,
            "tested_instance": row.instance_type,
            "tested_length": row.sequence_length,
            "tested_version": row.version,
            "tested_precision": row.precision,
            "compiled_batch": row.compiled_batch_size,
            "native_batch": row.native_batch_size,
            "batch_to_try": _batch_to_try(run, row),
        }
    return result


def _tested(run: PlannedRun) -> TestedModel | None:
    return nearest_tested(run.model, run.cluster.instance, run.sequence_length, run.plan.version)


def _is_own(run: PlannedRun, row: TestedModel) -> bool:
    same_machine = instance_family(row.instance_type) == instance_family(run.cluster.instance.name)
    return same_machine and row.sequence_length == run.sequence_length and row.precision == run.plan.precision


def _batch_to_try(run: PlannedRun, row: TestedModel) -> int:
    return row.compiled_batch_size if _is_own(run, row) else max(1, round(run.plan.batch_size * row.factor))


def with_tested_batch(run: PlannedRun) -> dict[str, WhatIf]:
    """Return the batch to try with the compiler, as a plan without it."""
    row = _tested(run)
    if row is None or run.job.global_batch_size is not None:
        return {}
    batch = _batch_to_try(run, row)
    return {"alternative": vary(run, batch_size=batch)} if batch != run.plan.batch_size else {}
