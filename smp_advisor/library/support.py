"""Which instances a library runs on, and the nearest one that it does."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.errors import InstanceError
from smp_advisor.library.version import facts

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance

__all__ = ["nearest_supported", "require_supported_instance", "supported_instances"]


@cache
def supported_instances(library: str) -> tuple[Instance, ...]:
    """Instances that AWS lists for a library."""
    return tuple(known_instance(name) for name in facts(library)["instances"]["supported"])


def require_supported_instance(library: str, instance: Instance | str) -> str:
    """Raise `InstanceError` unless the library runs on an instance.

    Parameters
    ----------
    library
        ``smp-v1``.
    instance
        An `Instance` or its name.

    Returns
    -------
    str
        A sentence for the user about hardware that is allowed although AWS does not list it; empty otherwise.

    Examples
    --------
    >>> require_supported_instance("smp-v1", "ml.p4d.24xlarge")
    ''
    """
    machine = known_instance(instance) if isinstance(instance, str) else instance
    stated = facts(library)
    if machine.custom:
        return f"{machine.name} is custom hardware: AWS lists {stated['name']} for SageMaker's own instances only."
    if machine in supported_instances(library):
        return ""
    near = nearest_supported(library, machine)
    usable = f"the nearest instance it can use is {near.name} ({near.gpus} x {near.gpu_label})"
    if any(gpu in machine.gpu.split() for gpu in stated["instances"]["newer_than_cuda_11"]):
        raise InstanceError(f"{stated['name']} runs on CUDA 11 only and cannot use {machine.name}; {usable}.")
    if machine.gpus == 1:
        raise InstanceError(
            f"{machine.name} has a single GPU and is not on AWS's list for {stated['name']}, which divides a model over"
            f" the GPUs of a node; {usable}."
        )
    raise InstanceError(f"{machine.name} is not on AWS's list for {stated['name']}; {usable}.")


def nearest_supported(library: str, machine: Instance) -> Instance:
    """Find the supported instance most like another: in GPU memory, GPUs a node and price, by ratio.

    Less memory a GPU counts twice, because a model that fits there need not fit here.
    """
    not_suggested = facts(library)["instances"]["not_suggested"]

    def distance(candidate: Instance) -> float:
        memory = math.log2(candidate.usable_gpu_memory_gib / machine.usable_gpu_memory_gib)
        gpus = abs(math.log2(candidate.gpus / machine.gpus))
        price = 0.0
        if candidate.usd_per_hour and machine.usd_per_hour:
            price = abs(math.log2(candidate.usd_per_hour / machine.usd_per_hour))
        return (memory if memory >= 0 else -2 * memory) + gpus + price

    return min((one for one in supported_instances(library) if one.name not in not_suggested), key=distance)
