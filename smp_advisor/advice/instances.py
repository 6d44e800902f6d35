"""The instance against others, and the models that AWS tested with Training Compiler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import Conclusion
from smp_advisor.advice.variants import WhatIf, vary
from smp_advisor.cluster import Cluster, Instance
from smp_advisor.costs.wording import compared, fit, fits, gib, plural, run_time, step_time, throughput, usd
from smp_advisor.libraries.training_compiler import TestedModel, nearest_tested
from smp_advisor.libraries.version import facts as library_facts
from smp_advisor.libraries.version import image, instance_family, suggested_instances

if TYPE_CHECKING:
    from smp_advisor.advice.practices import Decision
    from smp_advisor.advice.variants import Estimates, PlannedRun, Plans
    from smp_advisor.costs.estimate import Estimate


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
    rows = ((here, run.estimate), *((machine, estimates.get(machine.name)) for machine in machines))
    return Conclusion(
        decision=decision,
        because=f"{brief} {against}",
        brief=brief,
        figures=tuple((machine.name, _row(machine, estimate, run)) for machine, estimate in rows),
    )


def _follows(machine: Instance) -> bool:
    return machine.efa and machine.nvlink


def _row(machine: Instance, estimate: Estimate | None, run: PlannedRun) -> str:
    price = "price unknown" if machine.usd_per_hour is None else f"{usd(machine.usd_per_hour)}/h per node"
    links = f"{'NVLink' if machine.nvlink else machine.intra_node}, {'EFA' if machine.efa else 'no EFA'}"
    plan = "cannot run this plan"
    if estimate is not None:
        verdict = "fits" if fits(estimate, run.min_fit_probability) else "does not fit"
        plan = f"this plan {verdict}, needs {gib(estimate.needed_gib)}, {throughput(estimate)}"
    return "; ".join((f"{gib(machine.usable_gpu_memory_gib)} per GPU", links, price, plan))


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
