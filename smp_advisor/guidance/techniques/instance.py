"""Practice 1: large instances with EFA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.cluster import Cluster
from smp_advisor.guidance.amounts import unit, usd_per_million
from smp_advisor.guidance.techniques.finding import Finding
from smp_advisor.guidance.what_if import WhatIf, vary
from smp_advisor.guidance.wording import degree_of_change, fit, fits, gib, plural, throughput, usd
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.support import suggested_instances

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.instance import Instance
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.step import Decision

__all__ = ["ask", "find"]

SAME_PLAN = "the same plan"


def ask(case: Case) -> dict[str, WhatIf]:
    """The same plan, and simple changes of it, on as many GPUs of every other instance the library can use.

    Keys are ``instance name|change``.
    """
    result: dict[str, WhatIf] = {}
    for machine in _others(case):
        place = Cluster(machine, case.cluster.gpus // machine.gpus)
        for label, changes in _simple_changes(case).items():
            result[f"{machine.name}|{label}"] = vary(case, cluster=place, **changes)
    return result


def _others(case: Case) -> list[Instance]:
    """Those that can be had, are large enough to be worth dividing a model over, and offer as many GPUs."""
    here = case.cluster.instance
    return [
        machine
        for machine in suggested_instances(case.plan.library)
        if machine.name != here.name and case.cluster.gpus % machine.gpus == 0 and machine.gpus >= min(here.gpus, 4)
    ]


def _simple_changes(case: Case) -> dict[str, dict[str, Any]]:
    """Changes of one setting that other GPU memory may allow or ask for."""
    plan = case.plan
    result: dict[str, dict[str, Any]] = {SAME_PLAN: {}}
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
    if case.job.global_batch_size is None and _doubled_tokens(case) <= case.job.max_tokens_per_step:
        result[f"batch_size {2 * plan.batch_size}"] = {"batch_size": 2 * plan.batch_size}
    known = plan_fields(plan.library)
    return {label: changes for label, changes in result.items() if known.issuperset(changes)}


def _doubled_tokens(case: Case) -> int:
    return 2 * case.estimate.tokens_per_step


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Compare the instance with the others."""
    here = case.cluster.instance
    sentences = [f"{_described(here)}."]
    figures = [(here.name, _row(here, case.estimate, case))]
    for machine in _others(case):
        same = answers.get(f"{machine.name}|{SAME_PLAN}")
        figures.append((machine.name, _row(machine, same, case)))
    other = _most_telling(case)
    if other is None:
        sentences.append("The library can use no other instance that offers as many GPUs.")
    else:
        sentences += _against(case, other, asked, answers)
    return Finding(decision=_decision(case), because=" ".join(sentences), figures=tuple(figures))


def _follows(machine: Instance) -> bool:
    return machine.efa and machine.nvlink


def _decision(case: Case) -> Decision:
    if _follows(case.cluster.instance):
        return "used"
    return "not used" if any(_follows(machine) for machine in _others(case)) else "not possible"


def _described(machine: Instance) -> str:
    network = f"{machine.inter_node_gbps:g} Gbps between nodes"
    if machine.efa:
        network += " over EFA" + (" with GPUDirect RDMA" if machine.gpudirect_rdma else " without GPUDirect RDMA")
    else:
        network += " without EFA"
    link = (
        f"{machine.intra_node} ({machine.intra_node_gb_per_s:g} GB/s a GPU, both directions)"
        if machine.gpus > 1
        else machine.intra_node
    )
    price = "no known price" if machine.usd_per_hour is None else f"{usd(machine.usd_per_hour)} an hour"
    return (
        f"{machine.name} has {machine.gpus} x {machine.gpu_label} with {gib(machine.usable_gpu_memory_gib)} usable"
        f" each, {link}, {network}, at {price}"
    )


def _row(machine: Instance, estimate: Estimate | None, case: Case) -> str:
    price = "price unknown" if machine.usd_per_hour is None else f"{usd(machine.usd_per_hour)}/h a node"
    links = f"{'NVLink' if machine.nvlink else machine.intra_node}, {'EFA' if machine.efa else 'no EFA'}"
    if machine.gpudirect_rdma:
        links += " with GPUDirect RDMA"
    parts = [f"{gib(machine.usable_gpu_memory_gib)} a GPU", links, price]
    if estimate is None:
        parts.append("cannot run this plan")
    else:
        speed = throughput(estimate.samples_per_second)
        verdict = "fits" if fits(estimate, case.min_fit_probability) else "does not fit"
        parts.append(f"this plan {verdict}, needs {gib(estimate.needed_gib)}, {speed}")
    return "; ".join(parts)


def _most_telling(case: Case) -> Instance | None:
    """The instance to argue with: the next larger in GPU memory, else the largest there is, EFA first."""
    others = _others(case)
    usable = case.cluster.instance.usable_gpu_memory_gib
    larger = [machine for machine in others if machine.usable_gpu_memory_gib > usable * 1.02]
    if larger:
        return min(larger, key=lambda machine: (not _follows(machine), machine.usable_gpu_memory_gib))
    return max(others, key=lambda machine: (_follows(machine), machine.usable_gpu_memory_gib), default=None)


def _cost(case: Case, estimate: Estimate) -> str:
    price = usd_per_million(case.model, estimate)
    return "" if price is None else f" at {price:,.3f} USD a million {unit(case.model)}"


def _against(case: Case, other: Instance, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> list[str]:
    """Sentences on one other instance: the same plan there, and the best simple change."""
    least, now = case.min_fit_probability, case.estimate
    nodes = plural(case.cluster.gpus // other.gpus, "node")
    here = f"{throughput(now.samples_per_second)}{_cost(case, now)} here"
    same_question = asked[f"{other.name}|{SAME_PLAN}"]
    same = answers.get(f"{other.name}|{SAME_PLAN}")
    if same is None:
        return [f"The same plan cannot run on {other.name}: {same_question.obstacle}"]
    network = "" if _follows(other) else " (no EFA)" if not other.efa else " (no NVLink)"
    speed = (
        f" and processes {throughput(same.samples_per_second)}{_cost(case, same)}, compared with {here}"
        if fits(same, least)
        else ""
    )
    sentences = [
        (
            f"On {nodes} of {other.name}{network}, with {gib(other.usable_gpu_memory_gib)} a GPU, the same plan"
            f" {fit(same, least)}{speed}."
        )
    ]
    changes = {
        key.partition("|")[2]: one
        for key, one in answers.items()
        if key.startswith(f"{other.name}|") and fits(one, least)
    }
    if not changes:
        return [*sentences, "None of the simple changes of the plan would fit there."]
    best = max(changes, key=lambda label: changes[label].samples_per_second)
    if best == SAME_PLAN:
        return [*sentences, "No simple change of one setting would be faster there."]
    estimate, aside = changes[best], asked[f"{other.name}|{best}"].aside
    change = degree_of_change(now.samples_per_second, estimate.samples_per_second)
    speed = throughput(estimate.samples_per_second)
    sentences.append(
        f"The best simple change there is {best}{aside}: {speed}{_cost(case, estimate)}"
        f" ({change} throughput than here)."
        if change != "about the same"
        else f"The best simple change there, {best}{aside}, is about as fast as here{_cost(case, estimate)}."
    )
    return sentences
