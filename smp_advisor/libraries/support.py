"""Instances supported by a library, and the nearest supported one."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import instances
from smp_advisor.errors import InstanceError
from smp_advisor.libraries.version import facts

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance

__all__ = [
    "instance_family",
    "nearest_supported",
    "require_supported_instance",
    "suggested_instances",
    "supported_instances",
]


@cache
def supported_instances(library: str) -> tuple[Instance, ...]:
    """Instances that AWS lists for a library, or that the SDK accepts if there is no list."""
    rules = facts(library)["instances"]
    if "supported" in rules:
        return tuple(known_instance(name) for name in rules["supported"])
    families = rules.get("families")
    return tuple(instance for instance in instances() if families is None or instance_family(instance.name) in families)


@cache
def suggested_instances(library: str) -> tuple[Instance, ...]:
    """Supported instances to suggest: those that AWS still offers widely."""
    rules = facts(library)["instances"]
    names, families = rules.get("not_suggested", ()), rules.get("not_suggested_families", ())
    return tuple(
        instance
        for instance in supported_instances(library)
        if instance.name not in names and instance_family(instance.name) not in families
    )


def instance_family(name: str) -> str:
    """Family of an instance name: ``p4d`` of ``ml.p4d.24xlarge``."""
    return name.removeprefix("ml.").split(".")[0]


def require_supported_instance(library: str, instance: Instance | str) -> str:
    """Raise `InstanceError` unless the library runs on an instance.

    Parameters
    ----------
    library
        Name of a library.
    instance
        An `Instance` or its name.

    Returns
    -------
    str
        A sentence for the user about hardware that is allowed but not listed by AWS; empty otherwise.

    Examples
    --------
    >>> require_supported_instance("smp-v1", "ml.p4d.24xlarge")
    ''
    >>> require_supported_instance("smp-v2", "ml.p5en.48xlarge")
    'ml.p5en.48xlarge is not in a confirmed AWS list for SMP v2: check that a job starts before relying on it.'
    """
    machine = known_instance(instance) if isinstance(instance, str) else instance
    data = facts(library)
    rules = data["instances"]
    if machine.custom:
        if rules.get("any"):
            return ""
        return f"{machine.name} is custom hardware: AWS lists {data['name']} for SageMaker's own instances only."
    if machine in supported_instances(library):
        return ""
    near = nearest_supported(library, machine)
    usable = f"the nearest instance it can use is {near.name} ({near.gpus} x {near.gpu_label})"
    words = machine.gpu.split()
    if any(gpu in words for gpu in rules.get("unconfirmed_gpus", ())):
        return (
            f"{machine.name} is not in a confirmed AWS list for {data['name']}: check that a job starts before"
            " relying on it."
        )
    if any(gpu in words for gpu in rules.get("newer_than_cuda_11", ())):
        raise InstanceError(f"{data['name']} runs on CUDA 11 only and cannot use {machine.name}; {usable}.")
    if "families" in rules:
        raise InstanceError(
            f"The SageMaker SDK takes {data['name']} on the families {', '.join(rules['families'])} only, not on"
            f" {machine.name}; {usable}."
        )
    if machine.gpus == 1:
        raise InstanceError(
            f"{machine.name} has a single GPU and is not on AWS's list for {data['name']}, which divides a model over"
            f" the GPUs of a node; {usable}."
        )
    raise InstanceError(f"{machine.name} is not on AWS's list for {data['name']}; {usable}.")


def nearest_supported(library: str, machine: Instance) -> Instance:
    """Find the supported instance most similar to another in GPU memory, GPUs per node and price, by ratio.

    Less memory per GPU counts twice, because the model may then not fit.
    """

    def distance(candidate: Instance) -> float:
        memory = math.log2(candidate.usable_gpu_memory_gib / machine.usable_gpu_memory_gib)
        gpus = abs(math.log2(candidate.gpus / machine.gpus))
        price = 0.0
        if candidate.usd_per_hour and machine.usd_per_hour:
            price = abs(math.log2(candidate.usd_per_hour / machine.usd_per_hour))
        return (memory if memory >= 0 else -2 * memory) + gpus + price

    return min(suggested_instances(library), key=distance)
