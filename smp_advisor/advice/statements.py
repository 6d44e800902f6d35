"""The instance against others, and statements on practices that compare no plans: their texts are data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import Argument, Conclusion
from smp_advisor.advice.practices import facts_of, practice
from smp_advisor.advice.variants import WhatIf, vary
from smp_advisor.cluster import Cluster, Instance
from smp_advisor.core import GIB
from smp_advisor.costs.wording import (
    cost_per_million,
    fit,
    fits,
    gib,
    listed,
    plural,
    run_time,
    step_time,
    throughput,
    usd,
)
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import Condition
from smp_advisor.libraries.smp_v2 import SMDDP_INSTANCES
from smp_advisor.libraries.training_compiler import TestedModel, nearest_tested
from smp_advisor.libraries.version import facts as library_facts
from smp_advisor.libraries.version import image, instance_family, suggested_instances

if TYPE_CHECKING:
    from smp_advisor.advice.practices import Decision
    from smp_advisor.advice.variants import Estimates, PlannedRun, Plans
    from smp_advisor.costs.estimate import Estimate


def _stated(technique: str, run: PlannedRun) -> Conclusion:
    """Return the first statement of ``practices.toml`` on a technique whose conditions hold, with its slots filled."""
    facts = facts_of(run) | _of_start(run) | (_of_tests(run) if get_library(run.plan.library).compiles else {})
    for entry in practice(technique, run.plan.library).statement:
        if all(Condition.parse(name, text).holds(facts, facts) for name, text in entry.get("when", {}).items()):
            return Conclusion(
                decision=entry["decision"],
                because=entry["because"].format_map(facts),
                brief=entry.get("brief", ""),
                figures=tuple((label, text.format_map(facts)) for label, text in entry.get("figures", ())),
            )
    raise ValueError(f"no statement on {technique} holds")


def _of_start(run: PlannedRun) -> dict[str, Any]:
    """Facts of the hosts, links and containers of a run, for statements."""
    machine, fp32_gib = run.cluster.instance, 4 * run.model.parameter_count / GIB
    processes = min(run.cluster.gpus_per_node, run.cluster.gpus)
    return {
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
    }


_SHORTER_STEP = 0.2
"""Assumed reduction of the step time by compilation, for the example of amortization in ``practices.toml``."""


def _of_tests(run: PlannedRun) -> dict[str, Any]:
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


def _compiled_batch(run: PlannedRun) -> dict[str, WhatIf]:
    """Return the batch to try with the compiler, as a plan without it."""
    row = _tested(run)
    if row is None or run.job.global_batch_size is not None:
        return {}
    batch = _batch_to_try(run, row)
    return {"alternative": vary(run, batch_size=batch)} if batch != run.plan.batch_size else {}


def _others(run: PlannedRun) -> list[Instance]:
    """Instances that are available, have enough GPUs for a divided model, and allow the same number of GPUs."""
    here = run.cluster.instance
    return [
        machine
        for machine in suggested_instances(run.plan.library)
        if machine.name != here.name and run.cluster.gpus % machine.gpus == 0 and machine.gpus >= min(here.gpus, 4)
    ]


def _on_others(run: PlannedRun) -> dict[str, WhatIf]:
    """Return the same plan on as many GPUs of every other instance, by the instance's name."""
    gpus = run.cluster.gpus
    return {machine.name: vary(run, cluster=Cluster(machine, gpus // machine.gpus)) for machine in _others(run)}


def _on_instance(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    here, machines = run.cluster.instance, _others(run)
    decision: Decision = "used" if _follows(here) else "not used" if any(map(_follows, machines)) else "not possible"
    # The instance of the comparison: the next larger in GPU memory, otherwise the largest, EFA first.
    larger = [machine for machine in machines if machine.usable_gpu_memory_gib > here.usable_gpu_memory_gib * 1.02]
    against = ["The library runs on no other instance with this number of GPUs."]
    if larger:
        nearest = min(larger, key=lambda machine: (not _follows(machine), machine.usable_gpu_memory_gib))
        against = _against(run, nearest, comparisons, estimates)
    elif machines:
        largest = max(machines, key=lambda machine: (_follows(machine), machine.usable_gpu_memory_gib))
        against = _against(run, largest, comparisons, estimates)
    links = [f"{'NVLink' if here.nvlink else 'no NVLink'} inside the node"] if here.gpus > 1 else []
    links += [f"{'EFA' if here.efa else 'no EFA'} between nodes"] if run.cluster.nodes > 1 else []
    return Conclusion(
        decision=decision,
        because=" ".join([f"{_described(here)}.", *against]),
        brief=f"The cluster has {' and '.join(links)}." if links else "A single GPU trains, without any exchange.",
        figures=(
            (here.name, _row(here, run.estimate, run)),
            *((machine.name, _row(machine, estimates.get(machine.name), run)) for machine in machines),
        ),
    )


def _follows(machine: Instance) -> bool:
    return machine.efa and machine.nvlink


def _described(machine: Instance) -> str:
    network = f"{machine.inter_node_gbps:g} Gbps between nodes"
    if machine.efa:
        network += " over EFA" + (" with GPUDirect RDMA" if machine.gpudirect_rdma else " without GPUDirect RDMA")
    else:
        network += " without EFA"
    link = (
        f"{machine.intra_node} ({machine.intra_node_gb_per_s:g} GB/s per GPU, both directions)"
        if machine.gpus > 1
        else machine.intra_node
    )
    price = "no known price" if machine.usd_per_hour is None else f"{usd(machine.usd_per_hour)} per hour"
    return (
        f"{machine.name} has {machine.gpus} x {machine.gpu_label} with {gib(machine.usable_gpu_memory_gib)} usable"
        f" each, {link}, {network}, at {price}"
    )


def _row(machine: Instance, estimate: Estimate | None, run: PlannedRun) -> str:
    price = "price unknown" if machine.usd_per_hour is None else f"{usd(machine.usd_per_hour)}/h per node"
    links = f"{'NVLink' if machine.nvlink else machine.intra_node}, {'EFA' if machine.efa else 'no EFA'}"
    if machine.gpudirect_rdma:
        links += " with GPUDirect RDMA"
    parts = [f"{gib(machine.usable_gpu_memory_gib)} per GPU", links, price]
    if estimate is None:
        parts.append("cannot run this plan")
    else:
        speed = throughput(estimate)
        verdict = "fits" if fits(estimate, run.min_fit_probability) else "does not fit"
        parts.append(f"this plan {verdict}, needs {gib(estimate.needed_gib)}, {speed}")
    return "; ".join(parts)


def _against(run: PlannedRun, instance: Instance, comparisons: Plans, estimates: Estimates) -> list[str]:
    """Return sentences on the same plan on one other instance."""
    same, current, required = estimates.get(instance.name), run.estimate, run.min_fit_probability
    if same is None:
        return [f"The same plan cannot run on {instance.name}: {comparisons[instance.name].obstacle}"]
    link = "" if _follows(instance) else " (no EFA)" if not instance.efa else " (no NVLink)"
    place = f"{plural(run.cluster.gpus // instance.gpus, 'node')} of {instance.name}{link}"
    sentences = [
        f"On {place}, with {gib(instance.usable_gpu_memory_gib)} per GPU, the same plan {fit(same, required)}."
    ]
    if fits(same, required):
        there, here = (
            f"{throughput(of)}{f' at {price}' if (price := cost_per_million(run.model, of)) else ''}"
            for of in (same, current)
        )
        sentences.append(f"It processes {there}; here {here}.")
    return sentences


def stated(technique: str) -> Argument:
    """Return the argument on a technique from its statements in ``practices.toml``."""

    def conclude(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
        result = _stated(technique, run)
        return replace(result, alternative=comparisons["alternative"].plan) if "alternative" in estimates else result

    is_batch = technique == "batch"  # of Training Compiler: the others compare plans
    return Argument(_compiled_batch if is_batch else lambda _: {}, conclude)


instance = Argument(_on_others, _on_instance)
