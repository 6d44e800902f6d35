"""Whether a plan suits a cluster, a model and a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import PlanError
from smp_advisor.library import smp_v1_check, smp_v2_check, world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.library.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["check_against", "mismatches"]


def check_against(plan: Plan, cluster: Cluster, model: Model | None = None, job: Job | None = None) -> None:
    """Raise `PlanError` with the first of the `mismatches`, if there is one."""
    for sentence in mismatches(plan, cluster, model, job):
        raise PlanError(sentence)


def mismatches(plan: Plan, cluster: Cluster, model: Model | None = None, job: Job | None = None) -> Iterator[str]:
    """Yield a sentence for each way in which a plan does not suit where it runs, what it trains, or what is asked.

    A cluster that the degrees do not divide is reported alone, because nothing further can be said about it.
    """
    try:
        replicas = world.reduced_data_parallel_degree(plan, cluster)
    except PlanError as error:
        yield str(error)
        return
    if plan.precision == "bf16" and not cluster.instance.bf16:
        yield (
            f"{cluster.instance.name} ({cluster.instance.gpu_label}) does not compute in bf16: use fp16, or an instance"
            " with A100 GPUs such as ml.p4d.24xlarge."
        )
    match plan.library:
        case "smp-v1":
            yield from smp_v1_check.cluster_mismatches(plan, cluster, replicas)
        case "smp-v1-tensorflow" if not plan.horovod and replicas > 1:
            yield (
                f"horovod is off, but the cluster's {cluster.gpus} GPUs hold {replicas} replicas of the model: set"
                " horovod to True."
            )
        case "smp-v2":
            yield from smp_v2_check.cluster_mismatches(plan, cluster)
    if model is not None:
        yield from _divided(plan, model)
        if plan.library == "smp-v1":
            yield from smp_v1_check.model_mismatches(plan, model, job)
        elif plan.library == "smp-v2":
            yield from smp_v2_check.model_mismatches(plan, model, job)
    if job is not None:
        yield from _job(plan, cluster, job)


def _divided(plan: Plan, model: Model) -> Iterator[str]:
    """What tensor and pipeline parallelism divide must be divisible."""
    shape, degree = model.shape, plan.tensor_parallel_degree
    for name, size in (
        ("attention heads", shape.heads),
        ("hidden size", shape.hidden),
        ("feed-forward size", shape.ffn),
    ):
        if size % degree:
            yield (
                f"tensor_parallel_degree ({degree}) must divide the model's {name} ({size}), else the library leaves"
                f" those layers undivided: set it to {world.nearest_divisor(size, degree)}."
            )
    if shape.kv_heads % degree and degree % shape.kv_heads:
        yield (
            f"tensor_parallel_degree ({degree}) must divide the model's key-value heads ({shape.kv_heads}) or be a"
            f" multiple of them: set it to {world.nearest_divisor(shape.kv_heads, degree)}."
        )
    if plan.pipeline_parallel_degree > model.layer_count:
        name = "partitions" if plan.library == "smp-v1-tensorflow" else "pipeline_parallel_degree"
        yield (
            f"{name} ({plan.pipeline_parallel_degree}) cannot exceed the model's {model.layer_count}"
            f" blocks: set it to {model.layer_count} or less."
        )


def _job(plan: Plan, cluster: Cluster, job: Job) -> Iterator[str]:
    if job.precision != plan.precision:
        flag = "neither fp16 nor bf16" if job.precision == "fp32" else f"{job.precision}=True"
        remedy = flag if plan.library == "smp-v1" else f"precision={job.precision!r}"
        yield (
            f"The job trains in {job.precision} and the plan in {plan.precision}: give the plan {remedy}, or change the"
            " job."
        )
    fp8 = plan.library == "smp-v2" and plan.fp8
    if job.fp8 != fp8:
        has, lacks = ("plan", "job") if fp8 else ("job", "plan")
        yield f"The {has} runs matrix products in fp8 and the {lacks} does not: set fp8 to the same value in both."
    batch = world.global_batch_size(plan, cluster)
    if job.global_batch_size is not None and batch != job.global_batch_size:
        copies = world.replicas(plan, cluster) * plan.gradient_accumulation_steps
        wanted, rest = divmod(job.global_batch_size, copies)
        remedy = (
            f"set batch_size to {wanted}"
            if wanted and not rest
            else f"ask for a multiple of {copies}, for example {copies * max(1, round(job.global_batch_size / copies))}"
        )
        yield (
            f"The plan's global batch is {batch} samples (batch_size {plan.batch_size} x {copies}) and the job asks for"
            f" {job.global_batch_size}: {remedy}."
        )
