"""Whether a plan suits a cluster, a model and a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import PlanError
from smp_advisor.libraries import groups
from smp_advisor.libraries.library import get_library, libraries, plan_fields
from smp_advisor.libraries.version import architecture_name, default_of, driving_versions, image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


def check_against(plan: Plan, cluster: Cluster, model: Model | None = None, job: Job | None = None) -> None:
    """Raise `PlanError` with the first of the `mismatches`, if there is one."""
    for sentence in mismatches(plan, cluster, model, job):
        raise PlanError(sentence)


def mismatches(plan: Plan, cluster: Cluster, model: Model | None = None, job: Job | None = None) -> Iterator[str]:
    """Yield a sentence for each mismatch of a plan with its cluster, its model or its job.

    A cluster that the degrees do not divide is reported alone, because the other checks require groups of GPUs.
    """
    try:
        replicas = groups.reduced_data_parallel_degree(plan, cluster)
    except PlanError as error:
        yield str(error)
        return
    if plan.precision == "bf16" and not cluster.instance.bf16:
        yield (
            f"{cluster.instance.name} ({cluster.instance.gpu_label}) does not compute in bf16: use fp16, or an instance"
            " with A100 GPUs such as ml.p4d.24xlarge."
        )
    yield from _container(plan, cluster)
    record = get_library(plan.library)
    yield from record.cluster_mismatches(plan, cluster, replicas)
    if model is not None:
        yield from _divided(plan, model)
        yield from record.model_mismatches(plan, model, job)
    if job is not None:
        yield from _job(plan, cluster, job)


def _container(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """The container of the library version, which must have code for the GPU."""
    machine, chosen = cluster.instance, image(plan.library, plan.version).container
    if chosen.drives(machine):
        return
    usable = driving_versions(plan.library, machine)
    remedy = f"set version to {default_of(plan.library, usable)}" if usable else "choose another instance"
    yield (
        f"The container of {chosen.title} has no code for the {machine.gpu_label} ({architecture_name(machine)}) of"
        f" {machine.name}: {remedy}."
    )


def _divided(plan: Plan, model: Model) -> Iterator[str]:
    """Sizes of the model that the tensor and pipeline parallel degrees must divide."""
    shape, degree = model.shape, plan.tensor_parallel_degree
    for name, size in (
        ("attention heads", shape.heads),
        ("hidden size", shape.hidden),
        ("feed-forward size", shape.ffn),
    ):
        if size % degree:
            yield (
                f"tensor_parallel_degree ({degree}) must divide the model's {name} ({size}), else the library"
                f" leaves those layers undivided: set it to {groups.nearest_divisor(size, degree)}."
            )
    if shape.kv_heads % degree and degree % shape.kv_heads:
        yield (
            f"tensor_parallel_degree ({degree}) must divide the model's key-value heads ({shape.kv_heads}) or be a"
            f" multiple of them: set it to {groups.nearest_divisor(shape.kv_heads, degree)}."
        )
    if plan.pipeline_parallel_degree > model.layer_count:
        yield (
            f"{plan.PIPELINE_FIELD} ({plan.pipeline_parallel_degree}) cannot exceed the model's {model.layer_count}"
            f" blocks: set it to {model.layer_count} or less."
        )


def undocumented_settings(library: str, job: Job) -> tuple[str, ...]:
    """Adapters, fp8 products and training settings of a job that a library does not document, as phrases."""
    own = get_library(library)
    return (
        *(("adapters",) if job.adapter is not None and not own.adapters else ()),
        *(("fp8 products",) if job.fp8 and "fp8" not in plan_fields(library) else ()),
        *(f"{name}={value!r}" for name, value in job.training_settings().items() if name not in own.training_settings),
    )


def unscripted_adapter(library: str, job: Job) -> str:
    """Why the generated script does not train a job's adapter in a library, as a sentence; empty if it does.

    Examples
    --------
    >>> from smp_advisor.workload import Adapter, Job
    >>> unscripted_adapter("ddp", Job(adapter=Adapter(base_bits=4)))
    ''
    """
    own, adapter = get_library(library), job.adapter
    if adapter is None or adapter.base_bits in own.adapter_bases:
        return ""
    able = [record for record in libraries() if adapter.base_bits in record.adapter_bases]
    names = " or ".join(repr(record.name) for record in able)
    only = "" if any(record.divides_model for record in able) else " if a replica fits on one GPU"
    remedies = [*([f"use library={names}{only}"] if able else []), "pass script= with your own script"]
    if own.adapter_bases:
        reason = f"does not shard a base of {adapter.base_bits} bits, whose values bitsandbytes packs"
        remedies.insert(1, "set base_bits=16")
    else:
        titles = " or ".join(record.title for record in libraries() if record.adapter_bases)
        reason = f"trains adapters with {titles}, as AWS's examples with PEFT do, and not with {own.title}"
    *earlier, last = remedies
    return f"The generated script {reason}: {', '.join((*earlier, f'or {last}' if earlier else last))}."


def unsupported_settings(library: str, job: Job) -> Iterator[str]:
    """Yield a sentence for each training setting of a job that a library does not support."""
    own = get_library(library)
    for name, value in job.training_settings().items():
        if name not in own.training_settings:
            titles = " or ".join(record.title for record in libraries() if name in record.training_settings)
            yield f"{own.title} does not train with {name}={value!r}: leave it out of the job, or use {titles}."


def _job(plan: Plan, cluster: Cluster, job: Job) -> Iterator[str]:
    yield from unsupported_settings(plan.library, job)
    if job.optimizer_step == "backward" and plan.gradient_accumulation_steps > 1:
        yield (
            "optimizer_step='backward' updates parameters in every backward pass and cannot accumulate gradients over"
            f" {plan.gradient_accumulation_steps} batches: set gradient_accumulation_steps to 1, or change the job."
        )
    if job.precision != plan.precision:
        yield (
            f"The job trains in {job.precision} and the plan in {plan.precision}: set"
            f" {plan.precision_remedy(job.precision)} in the plan, or precision={plan.precision!r} in the job;"
            " the job of an advice is advice.job."
        )
    if job.fp8 != plan.fp8:
        has, lacks = ("plan", "job") if plan.fp8 else ("job", "plan")
        yield f"The {has} runs matrix products in fp8 and the {lacks} does not: set fp8 to the same value in both."
    batch = groups.global_batch_size(plan, cluster)
    if job.global_batch_size is not None and batch != job.global_batch_size:
        copies = groups.replicas(plan, cluster) * plan.gradient_accumulation_steps
        share, remainder = divmod(job.global_batch_size, copies)
        remedy = (
            f"set batch_size to {share}"
            if share and not remainder
            else f"request a multiple of {copies}, for example {copies * max(1, round(job.global_batch_size / copies))}"
        )
        yield (
            f"The plan's global batch is {batch} samples (batch_size {plan.batch_size} x {copies}) and the job requires"
            f" {job.global_batch_size}: {remedy}."
        )
