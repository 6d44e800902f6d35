"""Practices that hold for every plan of SMP v2 and Training Compiler: reasons from the run alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smp_advisor.guidance.conclusion import Conclusion, statement
from smp_advisor.guidance.what_if import vary
from smp_advisor.libraries.smp_v2 import SMDDP_INSTANCES
from smp_advisor.libraries.training_compiler import nearest_tested
from smp_advisor.libraries.version import facts, image, instance_family
from smp_advisor.wording import gib, listed, plural, run_time, step_time
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.guidance.what_if import PlannedRun, WhatIf
    from smp_advisor.libraries.training_compiler import TestedModel


def _precision(run: PlannedRun) -> Conclusion:
    precision = run.plan.precision
    if precision == "fp32":
        return Conclusion(
            decision="not used",
            because="The job trains in fp32: activations take twice the memory, and the GPU's 16-bit units are idle.",
        )
    scaling = "needs no loss scaling" if precision == "bf16" else "needs loss scaling (ShardedGradScaler)"
    fp8 = " Matrix products run in fp8." if run.job.fp8 else ""
    return Conclusion(
        decision="used",
        because=(
            f"Layers are gathered and computed in {precision}, which {scaling}. The sharded parameters, gradients and"
            f" optimizer state stay in fp32.{fp8}"
        ),
    )


def _collectives(run: PlannedRun) -> Conclusion:
    name = run.cluster.instance.name
    if run.plan.distributed_backend == "smddp":
        return Conclusion(decision="used", because=f"SageMaker's own all-gather runs on {name}.")
    if name not in SMDDP_INSTANCES:
        return Conclusion(
            decision="not possible", because=f"They run on {listed(SMDDP_INSTANCES)} only; {name} uses NCCL."
        )
    if run.cluster.nodes == 1:
        return Conclusion(decision="not used", because="Within a single node, NCCL's collectives use NVLink alone.")
    return Conclusion(
        decision="not used",
        because="Without sharding there is no all-gather to speed up; tensor parallelism alone works with NCCL only.",
    )


def _delayed(run: PlannedRun) -> Conclusion:
    host, total = run.cluster.instance.host_memory_gib, 4 * run.model.parameter_count / 2**30
    per_node = min(run.cluster.gpus_per_node, run.cluster.gpus)
    sentence = (
        f"The model's {format_count(run.model.parameter_count)} parameters take {gib(total)} in fp32 in each process"
        f" that creates them. A node has {gib(host)} of host memory for {per_node} processes."
    )
    if run.plan.delayed_parameter_initialization:
        return Conclusion(
            decision="used",
            because=f"{sentence} On the meta device, no process creates all of the parameters.",
            brief="On the meta device, no process creates all of the parameters.",
        )
    return Conclusion(
        decision="not used",
        because=f"{sentence} AWS requires it from about 60 billion parameters; it also makes the start faster.",
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
    return Conclusion(
        decision="used",
        because=(
            f"{facts(run.plan.library)['discontinued']} This plan's container has {content}. {tested} The compiler"
            " cannot be combined with the smdistributed libraries; several GPUs train data-parallel through pytorchxla."
        ),
    )


def _batch(run: PlannedRun) -> Conclusion:
    row, plan = _tested(run), run.plan
    sentence = (
        f"Each GPU processes {plural(plan.batch_size, 'sample')}, which fits without the compiler by the cost model."
    )
    if row is None:
        return Conclusion(
            decision="used",
            because=f"{sentence} AWS tested no such model: find the largest batch with the compiler by trying.",
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
    return Conclusion(
        decision="used",
        because=f"{sentence} {tested} {advice}, and watch the GPU's memory.{less}",
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
    return Conclusion(
        decision="used",
        because=(
            f"With {batch}, multiply the learning rate by {factor:.2f} (linear) or by"
            f" {math.sqrt(factor):.2f} (square root): learning rate / native batch x compiled batch.{ranks}"
        ),
        figures=(("linear", f"x {factor:.2f}"), ("square root", f"x {math.sqrt(factor):.2f}")),
    )


def _padding(run: PlannedRun) -> Conclusion:
    return Conclusion(
        decision="used",
        because=(
            f"Tokenize with padding='max_length' and max_length={run.sequence_length}, and drop the last, smaller"
            " batch. With padding='longest', nearly every batch has another shape and compiles the model again."
        ),
    )


def _gpus_per_node(run: PlannedRun) -> Conclusion:
    machine = run.cluster.instance
    if machine.gpus > 1:
        return Conclusion(
            decision="used", because=f"{machine.name} has {machine.gpus} GPUs; gradients stay within the instance."
        )
    if run.cluster.nodes == 1:
        return Conclusion(decision="not used", because="A single GPU trains: nothing is exchanged.")
    return Conclusion(
        decision="not used",
        because=(
            f"{run.cluster.nodes} x {machine.name} exchange all gradients over the network. One instance with as many"
            " GPUs is faster, as in AWS's example of one p3dn.24xlarge and 8 p3.2xlarge."
        ),
    )


def _network(run: PlannedRun) -> Conclusion:
    machine = run.cluster.instance
    if run.cluster.nodes == 1:
        return Conclusion(decision="not used", because="One node trains: there is no network between nodes.")
    if machine.efa:
        return Conclusion(decision="used", because=f"{machine.name} has EFA at {machine.inter_node_gbps:g} Gbps.")
    return Conclusion(
        decision="not used",
        because=f"{machine.name} has no EFA: gradients use TCP at {machine.inter_node_gbps:g} Gbps per node.",
    )


def _warm_up(run: PlannedRun) -> Conclusion:
    hours = None if run.estimate.days is None else run.estimate.days * 24
    duration = (
        " State the job's tokens to see how much compilation time your run would recover."
        if hours is None
        else f" Your run takes {run_time(run.estimate)} without the compiler by the cost model; at that rate it"
        f" recovers up to {hours * 60 * _SHORTER_STEP:,.0f} minutes of compilation."
    )
    return Conclusion(
        decision="used",
        because=(
            "The first steps compile the model and are very slow. AWS publishes no time for it; it grows with the model"
            " and with the number of different shapes. If compiled steps are"
            f" {100 * _SHORTER_STEP:.0f} % shorter, {10 / _SHORTER_STEP:.0f} minutes of training recover 10 minutes of"
            f" compilation ({step_time(run.estimate)} per step here without the compiler).{duration}"
        ),
    )


def _debug(run: PlannedRun) -> Conclusion:
    if run.plan.debug:
        return Conclusion(
            decision="used",
            because="debug=True writes the compiler's output to /opt/ml/output/data/compiler; it slows training down.",
        )
    return Conclusion(
        decision="not used",
        because="debug=True is for runs that fail or do not become faster. Leave it off otherwise.",
    )


def _compiled_batch(run: PlannedRun) -> WhatIf | None:
    """The plan with the compiled batch of AWS's row."""
    row = _tested(run)
    if row is None or run.job.global_batch_size is not None:
        return None
    batch = row.compiled_batch_size if _is_own(run, row) else max(1, round(run.plan.batch_size * row.factor))
    return vary(run, batch_size=batch) if batch != run.plan.batch_size else None


ARGUMENTS = {
    "mixed_precision": statement(_precision),
    "collectives": statement(_collectives),
    "delayed_initialization": statement(_delayed),
    "support": statement(_support),
    "compiled_batch": statement(_batch, _compiled_batch),
    "learning_rate": statement(_learning_rate),
    "padding": statement(_padding),
    "gpus_per_node": statement(_gpus_per_node),
    "network": statement(_network),
    "warm_up": statement(_warm_up),
    "debug": statement(_debug),
}
"""Arguments for the practices, by name."""
