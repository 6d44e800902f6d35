"""Best practices of Training Compiler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smp_advisor.guidance.compiler_table import nearest_tested
from smp_advisor.guidance.techniques.finding import Finding
from smp_advisor.guidance.techniques.statement import Statement
from smp_advisor.guidance.what_if import vary
from smp_advisor.guidance.wording import plural, seconds
from smp_advisor.libraries.support import instance_family
from smp_advisor.libraries.version import facts, image

if TYPE_CHECKING:
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.compiler_table import TestedModel
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["ROOMS"]

_SHORTER_STEP = 0.2
"""Share by which compiled steps are taken to be shorter in the example of amortisation."""


def _tested(case: Case) -> TestedModel | None:
    length = case.model.sequence_length(case.job.sequence_length)
    return nearest_tested(case.model, case.cluster.instance, length, case.plan.version)


def _support(case: Case) -> Finding:
    stated = facts("training-compiler")
    row = _tested(case)
    container = image("training-compiler", case.plan.version)
    holds = (
        f"transformers {container.transformers_version} with PyTorch {container.framework_version}"
        if container.transformers_version
        else f"PyTorch {container.framework_version}"
    )
    tested = (
        "AWS's table of tested models has none of this shape: measure a run with enabled=False against it."
        if row is None
        else f"AWS tested {row.model}, which has this shape."
    )
    return Finding(
        decision="used",
        because=(
            f"{stated['discontinued']} This plan's container holds {holds}. {tested} It cannot be combined with the"
            " smdistributed libraries; several GPUs train data-parallel through pytorchxla."
        ),
    )


def _batch(case: Case) -> Finding:
    row, plan = _tested(case), case.plan
    sentence = (
        f"Each GPU is handed {plural(plan.batch_size, 'sample')}, which by the cost model fits without the compiler."
    )
    if row is None:
        return Finding(
            decision="used",
            because=f"{sentence} What the compiler allows has to be found by trying: AWS tested no such model.",
            figures=(("batch_size", str(plan.batch_size)),),
        )
    length = case.model.sequence_length(case.job.sequence_length)
    exact = _is_own(case, row)
    where = f"on {row.instance_type} at {row.sequence_length} tokens (PyTorch {row.version}, {row.precision})"
    told = (
        f"AWS fitted {row.compiled_batch_size} samples a GPU with the compiler and {row.native_batch_size} without,"
        f" {where}: {row.factor:.2f} times"
    )
    advice = (
        f"start with {row.compiled_batch_size}"
        if exact
        else f"expect a similar factor and start with {max(1, round(plan.batch_size * row.factor))}, since your job"
        f" differs ({case.cluster.instance.name}, {length} tokens)"
    )
    less = "" if row.factor >= 1 else " Here the compiler takes more memory than it saves."
    return Finding(
        decision="used",
        because=f"{sentence} {told}; {advice}, and watch the GPU's memory.{less}",
        figures=(
            ("batch_size", str(plan.batch_size)),
            ("tested native batch", str(row.native_batch_size)),
            ("tested compiled batch", str(row.compiled_batch_size)),
        ),
    )


def _is_own(case: Case, row: TestedModel) -> bool:
    same_machine = instance_family(row.instance_type) == instance_family(case.cluster.instance.name)
    length = case.model.sequence_length(case.job.sequence_length)
    return same_machine and row.sequence_length == length and row.precision == case.plan.precision


def _learning_rate(case: Case) -> Finding:
    row = _tested(case)
    factor = row.factor if row else 2.0
    whose = "the tested factor" if row else "twice the batch, for example"
    gpus = case.cluster.gpus
    ranks = f" Times {gpus} GPUs where the native rate was that of one GPU." if gpus > 1 else ""
    return Finding(
        decision="used",
        because=(
            f"With {whose} of {factor:.2f}, multiply the learning rate by {factor:.2f} (linear) or by"
            f" {math.sqrt(factor):.2f} (square root): learning rate / native batch x compiled batch.{ranks}"
        ),
        figures=(("linear", f"x {factor:.2f}"), ("square root", f"x {math.sqrt(factor):.2f}")),
    )


def _padding(case: Case) -> Finding:
    length = case.model.sequence_length(case.job.sequence_length)
    return Finding(
        decision="used",
        because=(
            f"Tokenize with padding='max_length' and max_length={length}, and drop the last, smaller batch: with"
            " padding='longest' nearly every batch has another shape and compiles the model anew."
        ),
    )


def _gpus_per_node(case: Case) -> Finding:
    machine = case.cluster.instance
    if machine.gpus > 1:
        return Finding(
            decision="used", because=f"{machine.name} has {machine.gpus} GPUs; their gradients stay inside it."
        )
    if case.cluster.nodes == 1:
        return Finding(decision="not used", because="A single GPU trains: nothing is exchanged.")
    return Finding(
        decision="not used",
        because=(
            f"{case.cluster.nodes} x {machine.name} exchange all gradients over the network; one instance with as many"
            " GPUs is faster, as AWS's example of one p3dn.24xlarge against 8 p3.2xlarge says."
        ),
    )


def _network(case: Case) -> Finding:
    machine = case.cluster.instance
    if case.cluster.nodes == 1:
        return Finding(decision="not used", because="One node trains: there is no network between nodes.")
    if machine.efa:
        return Finding(decision="used", because=f"{machine.name} has EFA at {machine.inter_node_gbps:g} Gbps.")
    return Finding(
        decision="not used",
        because=f"{machine.name} has no EFA: gradients travel at {machine.inter_node_gbps:g} Gbps a node over TCP.",
    )


def _warm_up(case: Case) -> Finding:
    hours = None if case.estimate.days is None else case.estimate.days * 24
    run = (
        " Give the job its tokens to see what your run would pay back."
        if hours is None
        else f" Your run takes {hours:,.1f} hours without the compiler, by the cost model: at that rate it pays back"
        f" up to {hours * 60 * _SHORTER_STEP:,.0f} minutes of compilation."
    )
    back = 10 / _SHORTER_STEP
    return Finding(
        decision="used",
        because=(
            "The first steps compile the model and are exceptionally slow; AWS publishes no time for it, since it grows"
            " with the model and with the number of different shapes. Where compiled steps are"
            f" {100 * _SHORTER_STEP:.0f} % shorter, every 10 minutes of compilation are paid back after {back:.0f}"
            f" minutes of training ({seconds(case.estimate.step_seconds)} a step here, natively).{run}"
        ),
    )


def _debug(case: Case) -> Finding:
    if case.plan.debug:
        return Finding(
            decision="used",
            because="debug=True writes the compiler's output to /opt/ml/output/data/compiler; it slows training down.",
        )
    return Finding(
        decision="not used",
        because="debug=True is for a run that fails or does not get faster; leave it off otherwise.",
    )


def _compiled_batch(case: Case) -> WhatIf | None:
    """The plan with the batch that AWS's row allows."""
    row = _tested(case)
    if row is None or case.job.global_batch_size is not None:
        return None
    own = row.compiled_batch_size if _is_own(case, row) else max(1, round(case.plan.batch_size * row.factor))
    return vary(case, batch_size=own) if own != case.plan.batch_size else None


ROOMS = {
    "support": Statement(_support),
    "batch": Statement(_batch, _compiled_batch),
    "learning_rate": Statement(_learning_rate),
    "padding": Statement(_padding),
    "gpus_per_node": Statement(_gpus_per_node),
    "network": Statement(_network),
    "warm_up": Statement(_warm_up),
    "debug": Statement(_debug),
}
"""Techniques of Training Compiler, by name."""
