"""Short descriptions of a plan and its hardware, for comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.registry import get_library
from smp_advisor.libraries.version import image

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.containers import Container
    from smp_advisor.libraries.plan import Plan

__all__ = ["container_name", "describe", "hardware", "in_words", "library_name"]

_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}


def hardware(cluster: Cluster) -> str:
    """Instances, GPUs and price of a cluster."""
    price = cluster.usd_per_hour
    cost = "price unknown" if price is None else f"about ${price:,.2f} per hour"
    return f"{cluster.nodes} x {cluster.instance.name} ({cluster.gpus} GPUs, {cost})"


def library_name(plan: Plan) -> str:
    """Library with its version and framework, for example "SMP v2 2.8.0 (PyTorch 2.5.1)"."""
    library, framework_version = get_library(plan.library), image(plan.library, plan.version).framework_version
    # A library without versions of its own uses those of its framework.
    version = "" if plan.version == framework_version else f" {plan.version}"
    return f"{library.title}{version} ({_FRAMEWORKS[library.framework]} {framework_version})"


def container_name(container: Container) -> str:
    """Versions in a container, with the last day of AWS's patches if it is known."""
    parts = [f"Python {container.py_version[2]}.{container.py_version[3:] or '6'}"]
    if container.cuda:
        parts.insert(0, f"CUDA {container.cuda}")
    if container.transformers_version:
        parts.append(f"transformers {container.transformers_version}")
    patches = f"; AWS's patches end on {container.end_of_support}" if container.end_of_support else ""
    return f"{', '.join(parts)}{patches}"


def describe(plan: Plan) -> str:
    """Precision and techniques of a plan."""
    words = {
        "pipeline parallelism": plan.pipeline_parallel_degree > 1,
        "tensor parallelism": plan.tensor_parallel_degree > 1,
        "context parallelism": plan.context_parallel_degree > 1,
        "expert parallelism": plan.expert_parallel_degree > 1,
        "sharded data parallelism": plan.shards_parameters,
        "optimizer state sharding": plan.shard_optimizer_state,
        "compiled": get_library(plan.library).compiles,
    }
    used = [word for word, on in words.items() if on] or ["data parallelism"]
    return f"{plan.precision}, {', '.join(used)}"


def in_words(seconds: float) -> str:
    """A duration in its natural unit, with two to three digits.

    Examples
    --------
    >>> in_words(42), in_words(5400), in_words(104 * 86400)
    ('42 s', '90 min', '104 days')
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
