"""Large instances with EFA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.cluster import Cluster
from smp_advisor.guidance.conclusion import Argument, Conclusion
from smp_advisor.guidance.what_if import WhatIf, vary
from smp_advisor.libraries.library import plan_fields
from smp_advisor.libraries.version import suggested_instances
from smp_advisor.wording import cost_per_million, degree_of_change, fit, fits, gib, plural, throughput, usd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.table import Instance
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.practices import Decision
    from smp_advisor.guidance.what_if import PlannedRun

_SAME_PLAN = "the same plan"


def _elsewhere(run: PlannedRun) -> dict[str, WhatIf]:
    """The same plan, and simple changes of it, on as many GPUs of every other instance: ``instance name|change``."""
    result: dict[str, WhatIf] = {}
    for machine in _others(run):
        place = Cluster(machine, run.cluster.gpus // machine.gpus)
        for label, changes in _simple_changes(run).items():
            result[f"{machine.name}|{label}"] = vary(run, cluster=place, **changes)
    return result


def _others(run: PlannedRun) -> list[Instance]:
    """Instances that are available, have enough GPUs for a divided model, and allow the same number of GPUs."""
    here = run.cluster.instance
    return [
        machine
        for machine in suggested_instances(run.plan.library)
        if machine.name != here.name and run.cluster.gpus % machine.gpus == 0 and machine.gpus >= min(here.gpus, 4)
    ]


def _simple_changes(run: PlannedRun) -> dict[str, dict[str, Any]]:
    """Changes of one setting that another GPU memory may allow or require."""
    plan = run.plan
    result: dict[str, dict[str, Any]] = {_SAME_PLAN: {}}
    if plan.activation_checkpointing:
        result["activation checkpointing off"] = {"activation_checkpointing": False}
    else:
        result["activation checkpointing on"] = {"activation_checkpointing": "each"}
    if plan.offload_activations:
        result["offloading off"] = {"offload_activations": False}
    if plan.tensor_parallel_degree % 2 == 0:
        half = plan.tensor_parallel_degree // 2
        result[f"tensor_parallel_degree {half}"] = {"tensor_parallel_degree": half}
    if plan.pipeline_parallel_degree % 2 == 0:
        half = plan.pipeline_parallel_degree // 2
        result[f"pipeline_parallel_degree {half}"] = {"pipeline_parallel_degree": half}
    if run.job.global_batch_size is None and 2 * run.estimate.tokens_per_step <= run.job.max_tokens_per_step:
        result[f"batch_size {2 * plan.batch_size}"] = {"batch_size": 2 * plan.batch_size}
    fields = plan_fields(plan.library)
    return {label: changes for label, changes in result.items() if fields.issuperset(changes)}


def _on_instance(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Compare the instance with the others."""
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
    same = {machine.name: estimates.get(f"{machine.name}|{_SAME_PLAN}") for machine in machines}
    return Conclusion(
        decision=decision,
        because=" ".join([f"{_described(here)}.", *against]),
        brief=f"The cluster has {' and '.join(links)}." if links else "A single GPU trains, without any exchange.",
        figures=(
            (here.name, _row(here, run.estimate, run)),
            *((machine.name, _row(machine, same[machine.name], run)) for machine in machines),
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


def _cost(run: PlannedRun, estimate: Estimate) -> str:
    price = cost_per_million(run.model, estimate)
    return f" at {price}" if price else ""


def _against(
    run: PlannedRun, instance: Instance, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]
) -> list[str]:
    """Sentences on one other instance: the same plan there, and the best simple change."""
    required, current = run.min_fit_probability, run.estimate
    key = f"{instance.name}|{_SAME_PLAN}"
    same = estimates.get(key)
    if same is None:
        return [f"The same plan cannot run on {instance.name}: {comparisons[key].obstacle}"]
    link = "" if _follows(instance) else " (no EFA)" if not instance.efa else " (no NVLink)"
    nodes = plural(run.cluster.gpus // instance.gpus, "node")
    sentences = [
        (
            f"On {nodes} of {instance.name}{link}, with {gib(instance.usable_gpu_memory_gib)} per GPU, the same plan"
            f" {fit(same, required)}."
        )
    ]
    if fits(same, required):
        sentences.append(
            f"It processes {throughput(same)}{_cost(run, same)}; here {throughput(current)}{_cost(run, current)}."
        )
    changes = {
        name.partition("|")[2]: estimate
        for name, estimate in estimates.items()
        if name.startswith(f"{instance.name}|") and fits(estimate, required)
    }
    if not changes:
        return [*sentences, "No simple change of the plan makes it fit there."]
    best = max(changes, key=lambda label: changes[label].samples_per_second)
    if best == _SAME_PLAN:
        return [*sentences, "No simple change of one setting is faster there."]
    estimate, aside = changes[best], comparisons[f"{instance.name}|{best}"].aside
    change = degree_of_change(current.samples_per_second, estimate.samples_per_second)
    lead = f"The best simple change there is {best}{aside}"
    return [
        *sentences,
        f"{lead}, about as fast as here{_cost(run, estimate)}."
        if change == "about the same"
        else f"{lead}: {throughput(estimate)}{_cost(run, estimate)}, {change} than here.",
    ]


instance = Argument(_elsewhere, _on_instance)
