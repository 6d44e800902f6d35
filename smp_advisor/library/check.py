"""Whether a plan suits a cluster, a model and a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import PlanError
from smp_advisor.library import world

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
    yield from _cluster(plan, cluster, replicas)
    if model is not None:
        yield from _model(plan, model, job)
    if job is not None:
        yield from _job(plan, cluster, job)


def _cluster(plan: Plan, cluster: Cluster, replicas: int) -> Iterator[str]:
    if not plan.ddp and replicas > 1:
        yield (
            f"ddp is off, but the cluster's {cluster.gpus} GPUs hold {replicas} replicas of the model: set ddp to True."
        )
    shards = plan.sharded_data_parallel_degree
    if replicas % shards:
        # Ranks of a tensor-parallel group hold different slices, so shards are spread over replicas only.
        divided = "data-parallel degree" if plan.tensor_parallel_degree == 1 else "reduced data-parallel degree"
        yield (
            f"sharded_data_parallel_degree ({shards}) must divide the {divided}, which is {replicas} on {cluster.gpus}"
            f" GPUs: set it to {_nearest_divisor(replicas, shards)}."
        )
    if plan.bf16 and not cluster.instance.bf16:
        yield (
            f"{cluster.instance.name} ({cluster.instance.gpu_label}) does not compute in bf16: use fp16, or an instance"
            " with A100 GPUs such as ml.p4d.24xlarge."
        )


def _model(plan: Plan, model: Model, job: Job | None) -> Iterator[str]:
    shape, degree = model.shape, plan.tensor_parallel_degree
    for name, size in (
        ("attention heads", shape.heads),
        ("hidden size", shape.hidden),
        ("feed-forward size", shape.ffn),
    ):
        if size % degree:
            yield (
                f"tensor_parallel_degree ({degree}) must divide the model's {name} ({size}), else the library leaves"
                f" those layers undivided: set it to {_nearest_divisor(size, degree)}."
            )
    if shape.kv_heads % degree and degree % shape.kv_heads:
        yield (
            f"tensor_parallel_degree ({degree}) must divide the model's key-value heads ({shape.kv_heads}) or be a"
            f" multiple of them: set it to {_nearest_divisor(shape.kv_heads, degree)}."
        )
    if plan.pipeline_parallel_degree > model.layer_count:
        yield (
            f"pipeline_parallel_degree ({plan.pipeline_parallel_degree}) cannot exceed the model's {model.layer_count}"
            f" blocks: set it to {model.layer_count} or less."
        )
    if job is not None and plan.prescaled_batch:
        length = model.sequence_length(job.sequence_length)
        if length % degree:
            yield (
                f"With prescaled_batch the sequence length ({length}) must be a multiple of tensor_parallel_degree"
                f" ({degree}): use {length // degree * degree or degree} tokens, or turn prescaled_batch off."
            )


def _job(plan: Plan, cluster: Cluster, job: Job) -> Iterator[str]:
    if job.precision != plan.precision:
        flag = "neither fp16 nor bf16" if job.precision == "fp32" else f"{job.precision}=True"
        yield (
            f"The job trains in {job.precision} and the plan in {plan.precision}: give the plan {flag}, or change the"
            " job."
        )
    batch = world.global_batch_size(plan, cluster)
    if job.global_batch_size is not None and batch != job.global_batch_size:
        copies = world.replicas(plan, cluster)
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


def _nearest_divisor(number: int, wanted: int) -> int:
    """Return the divisor of `number` nearest to `wanted`, the larger of two equally near."""
    return min(world.divisors(number), key=lambda one: (abs(one - wanted), -one))
