"""Groups of GPUs of a plan on a cluster, and the resulting batch.

World = pipeline x tensor x context x replicas. SMP v1 runs tensor parallelism across data-parallel ranks: the world
divided by the pipeline degree is the data-parallel degree, and that divided by the tensor degree is the reduced
data-parallel degree (ranking mechanism, SageMaker developer guide).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smp_advisor.core.files import sentence
from smp_advisor.errors import PlanError

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan


def divisors(number: int) -> list[int]:
    """Divisors in increasing order: the degrees possible for a number of GPUs or heads."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def nearest_divisor(number: int, target: int) -> int:
    """Return the divisor of `number` nearest to `target`, the larger of two equally near."""
    return min(divisors(number), key=lambda divisor: (abs(divisor - target), -divisor))


def data_parallel_degree(plan: Plan, cluster: Cluster) -> int:
    """Return the ranks of a data-parallel group: world / pipeline degree (tensor-parallel ranks are among them)."""
    per_replica = plan.pipeline_parallel_degree * plan.tensor_parallel_degree * plan.context_parallel_degree
    if cluster.gpus % per_replica:
        nodes = math.lcm(per_replica, cluster.gpus_per_node) // cluster.gpus_per_node
        degrees = {name: getattr(plan, name) for name in plan.BATCH_DEGREES}
        product = f"{' x '.join(map(str, degrees.values()))} = {per_replica}" if len(degrees) > 1 else f"{per_replica}"
        values = {"names": " x ".join(degrees), "product": product, "nodes": nodes}
        raise PlanError(sentence("libraries", "no_multiple", cluster=cluster, **values))
    return cluster.gpus // plan.pipeline_parallel_degree


def reduced_data_parallel_degree(plan: Plan, cluster: Cluster) -> int:
    """Groups of GPUs that process different samples: data-parallel degree / (tensor degree x context degree)."""
    return data_parallel_degree(plan, cluster) // (plan.tensor_parallel_degree * plan.context_parallel_degree)


def replicas(plan: Plan, cluster: Cluster) -> int:
    """Return the batches of `batch_size` that one forward pass processes."""
    return reduced_data_parallel_degree(plan, cluster) * plan.batches_per_group


def shard_degree(plan: Plan, cluster: Cluster) -> int:
    """Return the GPUs over which parameters, gradients and optimizer state are sharded, 1 for none."""
    return plan.shard_degree(cluster)


def global_batch_size(plan: Plan, cluster: Cluster) -> int:
    """Return the samples per optimizer step over the full cluster."""
    return replicas(plan, cluster) * plan.batch_size * plan.gradient_accumulation_steps
