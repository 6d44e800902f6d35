"""The instance against others, and practices that hold for every plan: reasons from the run alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smp_advisor.advice.conclusion import Argument, Conclusion, not_possible, not_used, statement, used
from smp_advisor.advice.variants import WhatIf, vary
from smp_advisor.cluster import Cluster, Instance
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
from smp_advisor.libraries.smp_v2 import SMDDP_INSTANCES
from smp_advisor.libraries.training_compiler import TestedModel, nearest_tested
from smp_advisor.libraries.version import facts, image, instance_family, suggested_instances
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.advice.practices import Decision
    from smp_advisor.advice.variants import Estimates, PlannedRun, Plans
    from smp_advisor.costs.estimate import Estimate


def _precision(run: PlannedRun) -> Conclusion:
    precision = run.plan.precision
    if precision == "fp32":
        return not_used(
            "The job trains in fp32: activations take twice the memory, and the GPU's 16-bit units are idle."
        )
    scaling = "needs no loss scaling" if precision == "bf16" else "needs loss scaling (ShardedGradScaler)"
    fp8 = " Matrix products run in fp8." if run.job.fp8 else ""
    return used(
        f"Layers are gathered and computed in {precision}, which {scaling}. The sharded parameters, gradients and"
        f" optimizer state stay in fp32.{fp8}"
    )


def _collectives(run: PlannedRun) -> Conclusion:
    name = run.cluster.instance.name
    if run.plan.distributed_backend == "smddp":
        return used(f"SageMaker's own all-gather runs on {name}.")
    if name not in SMDDP_INSTANCES:
        return not_possible(f"They run on {listed(SMDDP_INSTANCES)} only; {name} uses NCCL.")
    if run.cluster.nodes == 1:
        return not_used("Within a single node, NCCL's collectives use NVLink alone.")
    return not_used(
        "Without sharding there is no all-gather to speed up; tensor parallelism alone works with NCCL only."
    )


def _delayed(run: PlannedRun) -> Conclusion:
    host, total = run.cluster.instance.host_memory_gib, 4 * run.model.parameter_count / 2**30
    per_node = min(run.cluster.gpus_per_node, run.cluster.gpus)
    sentence = (
        f"The model's {format_count(run.model.parameter_count)} parameters take {gib(total)} in fp32 in each process"
        f" that creates them. A node has {gib(host)} of host memory for {per_node} processes."
    )
    if run.plan.delayed_parameter_initialization:
        return used(
            f"{sentence} On the meta device, no process creates all of the parameters.",
            brief="On the meta device, no process creates all of the parameters.",
        )
    return not_used(
        f"{sentence} AWS requires it from about 60 billion parameters; it also makes the start faster.",
        brief=(
            "Each node has enough host memory to create the model in every process."
            if per_node * total <= host
            else "Creating the model in every process would exceed the host memory of a node."
        ),
    )


_SHORTER_STEP = 0.2
"""Assumed reduction of the step time by compilation, for the example of amortization."""


def _tested(run: PlannedRun) -> TestedModel | None:
    return nearest_tested(run.model, run.cluster.instance, run.sequence_length, run.plan.version)


def _support(run: PlannedRun) -> Conclusion:
    row = _tested(run)
    container = image(run.plan.library, run.plan.version)
    content = f"PyTorch {container.framework_version}"
    if container.transformers_version:
        content = f"transformers {container.transformers_version} with {content}"
    tested = (
        "AWS's table of tested models has no model of this shape: compare with a run with enabled=False."
        if row is None
        else f"AWS tested {row.model}, which has this shape."
    )
    return used(
        f"{facts(run.plan.library)['discontinued']} This plan's container has {content}. {tested} The compiler"
        " cannot be combined with the smdistributed libraries; several GPUs train data-parallel through pytorchxla."
    )


def _batch(run: PlannedRun) -> Conclusion:
    row, plan = _tested(run), run.plan
    sentence = (
        f"Each GPU processes {plural(plan.batch_size, 'sample')}, which fits without the compiler by the cost model."
    )
    if row is None:
        return used(
            f"{sentence} AWS tested no such model: find the largest batch with the compiler by trying.",
            brief="The batch fits without the compiler. AWS tested no such model: try larger ones with it.",
            figures=(("batch_size", str(plan.batch_size)),),
        )
    tested = (
        f"AWS's largest batches are {row.compiled_batch_size} samples per GPU with the compiler and"
        f" {row.native_batch_size} without, on {row.instance_type} at {row.sequence_length} tokens (PyTorch"
        f" {row.version}, {row.precision}): {row.factor:.2f} times."
    )
    advice = (
        f"Start with {row.compiled_batch_size}"
        if _is_own(run, row)
        else f"Your job differs ({run.cluster.instance.name}, {run.sequence_length} tokens): expect a similar factor,"
        f" start with {max(1, round(plan.batch_size * row.factor))}"
    )
    less = "" if row.factor >= 1 else " Here the compiler takes more memory than it saves."
    return used(
        f"{sentence} {tested} {advice}, and watch the GPU's memory.{less}",
        brief="The batch fits without the compiler. AWS's tests show how it changes with the compiler (details).",
        figures=(
            ("batch_size", str(plan.batch_size)),
            ("tested native batch", str(row.native_batch_size)),
            ("tested compiled batch", str(row.compiled_batch_size)),
        ),
    )


def _is_own(run: PlannedRun, row: TestedModel) -> bool:
    same_machine = instance_family(row.instance_type) == instance_family(run.cluster.instance.name)
    return same_machine and row.sequence_length == run.sequence_length and row.precision == run.plan.precision


def _learning_rate(run: PlannedRun) -> Conclusion:
    row = _tested(run)
    factor = row.factor if row else 2.0
    batch = f"the tested factor of {factor:.2f}" if row else "twice the batch"
    gpus = run.cluster.gpus
    ranks = f" Multiply by {gpus} GPUs as well if the native rate was for one GPU." if gpus > 1 else ""
    return used(
        f"With {batch}, multiply the learning rate by {factor:.2f} (linear) or by"
        f" {math.sqrt(factor):.2f} (square root): learning rate / native batch x compiled batch.{ranks}",
        figures=(("linear", f"x {factor:.2f}"), ("square root", f"x {math.sqrt(factor):.2f}")),
    )


def _gpus_per_node(run: PlannedRun) -> Conclusion:
    machine = run.cluster.instance
    if machine.gpus > 1:
        return used(f"{machine.name} has {machine.gpus} GPUs; gradients stay within the instance.")
    if run.cluster.nodes == 1:
        return not_used("A single GPU trains: nothing is exchanged.")
    return not_used(
        f"{run.cluster.nodes} x {machine.name} exchange all gradients over the network. One instance with as many"
        " GPUs is faster, as in AWS's example of one p3dn.24xlarge and 8 p3.2xlarge."
    )


def _network(run: PlannedRun) -> Conclusion:
    machine = run.cluster.instance
    if run.cluster.nodes == 1:
        return not_used("One node trains: there is no network between nodes.")
    if machine.efa:
        return used(f"{machine.name} has EFA at {machine.inter_node_gbps:g} Gbps.")
    return not_used(f"{machine.name} has no EFA: gradients use TCP at {machine.inter_node_gbps:g} Gbps per node.")


def _warm_up(run: PlannedRun) -> Conclusion:
    hours = None if run.estimate.days is None else run.estimate.days * 24
    duration = (
        " State the job's tokens to see how much compilation time your run would recover."
        if hours is None
        else f" Your run takes {run_time(run.estimate)} without the compiler by the cost model; at that rate it"
        f" recovers up to {hours * 60 * _SHORTER_STEP:,.0f} minutes of compilation."
    )
    return used(
        "The first steps compile the model and are very slow. AWS publishes no time for it; it grows with the model"
        " and with the number of different shapes. If compiled steps are"
        f" {100 * _SHORTER_STEP:.0f} % shorter, {10 / _SHORTER_STEP:.0f} minutes of training recover 10 minutes of"
        f" compilation ({step_time(run.estimate)} per step here without the compiler).{duration}"
    )


def _debug(run: PlannedRun) -> Conclusion:
    if run.plan.debug:
        return used("debug=True writes the compiler's output to /opt/ml/output/data/compiler; it slows training down.")
    return not_used("debug=True is for runs that fail or do not become faster. Leave it off otherwise.")


def _compiled_batch(run: PlannedRun) -> WhatIf | None:
    row = _tested(run)
    if row is None or run.job.global_batch_size is not None:
        return None
    batch = row.compiled_batch_size if _is_own(run, row) else max(1, round(run.plan.batch_size * row.factor))
    return vary(run, batch_size=batch) if batch != run.plan.batch_size else None


def _others(run: PlannedRun) -> list[Instance]:
    """Instances that are available, have enough GPUs for a divided model, and allow the same number of GPUs."""
    here = run.cluster.instance
    return [
        machine
        for machine in suggested_instances(run.plan.library)
        if machine.name != here.name and run.cluster.gpus % machine.gpus == 0 and machine.gpus >= min(here.gpus, 4)
    ]


def _on_others(run: PlannedRun) -> dict[str, WhatIf]:
    """The same plan on as many GPUs of every other instance, by the instance's name."""
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
    """Sentences on the same plan on one other instance."""
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


ARGUMENTS = {
    "instance": Argument(_on_others, _on_instance),
    "mixed_precision": statement(_precision),
    "collectives": statement(_collectives),
    "delayed_initialization": statement(_delayed),
    "support": statement(_support),
    "compiled_batch": statement(_batch, _compiled_batch),
    "learning_rate": statement(_learning_rate),
    "padding": statement(
        lambda run: used(
            f"Tokenize with padding='max_length' and max_length={run.sequence_length}, and drop the last, smaller"
            " batch. With padding='longest', nearly every batch has another shape and compiles the model again."
        )
    ),
    "gpus_per_node": statement(_gpus_per_node),
    "network": statement(_network),
    "warm_up": statement(_warm_up),
    "debug": statement(_debug),
}
"""Arguments for the practices, by name."""
