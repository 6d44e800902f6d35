"""Short descriptions of a plan and its hardware, for comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.version import facts, image

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

__all__ = ["describe", "hardware", "library_name"]

_FRAMEWORKS = {"smp-v1-tensorflow": "TensorFlow"}


def hardware(cluster: Cluster) -> str:
    """Instances, GPUs and price of a cluster."""
    price = cluster.usd_per_hour
    cost = "price unknown" if price is None else f"about ${price:,.2f} per hour"
    return f"{cluster.nodes} x {cluster.instance.name} ({cluster.gpus} GPUs, {cost})"


def library_name(plan: Plan) -> str:
    """Library with its version and framework, for example "SMP v2 2.8.0 (PyTorch 2.5.1)"."""
    framework = f"{_FRAMEWORKS.get(plan.library, 'PyTorch')} {image(plan.library, plan.version).framework_version}"
    name = facts(plan.library)["name"]
    # A library without versions of its own uses those of its framework.
    own = plan.version != image(plan.library, plan.version).framework_version
    return f"{name} {plan.version} ({framework})" if own else f"{name} ({framework})"


def describe(plan: Plan) -> str:
    """Precision and techniques of a plan."""
    words = {
        "pipeline parallelism": plan.pipeline_parallel_degree > 1,
        "tensor parallelism": plan.tensor_parallel_degree > 1,
        "context parallelism": plan.context_parallel_degree > 1,
        "expert parallelism": plan.expert_parallel_degree > 1,
        "sharded data parallelism": plan.library in ("smp-v2", "fsdp")
        or getattr(plan, "sharded_data_parallel_degree", 1) > 1,
        "optimizer state sharding": getattr(plan, "shard_optimizer_state", False),
        "compiled": plan.library == "training-compiler",
    }
    used = [word for word, on in words.items() if on] or ["data parallelism"]
    return f"{plan.precision}, {', '.join(used)}"
