"""Instances supported by a library, and the nearest supported one."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import instances
from smp_advisor.errors import InstanceError
from smp_advisor.libraries.registry import get_library, libraries
from smp_advisor.libraries.version import driving_versions, facts, images

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance

__all__ = [
    "architecture_name",
    "instance_family",
    "nearest_supported",
    "require_supported_instance",
    "suggested_instances",
    "supported_instances",
    "unconfirmed",
    "unlisted_because",
    "without_container",
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
    if machine.custom:
        if data["instances"].get("any"):
            return ""
        return f"{machine.name} is custom hardware: AWS lists {data['name']} for SageMaker's own instances only."
    reason = unlisted_because(library, machine)
    if not reason:
        without = without_container(library, machine)
        return f"{without}: a job requires an image of your own." if without else ""
    if unconfirmed(library, machine):
        return f"{reason}: check that a job starts before relying on it."
    near = nearest_supported(library, machine)
    *earlier, last = [f"{name!r}" for name in _libraries_on(machine, get_library(library).framework)] or [""]
    choices = f"{', '.join(earlier)} or {last}" if earlier else last
    way_out = f"; on {machine.name}, use library={choices}" if last else ""
    raise InstanceError(
        f"{reason}; the nearest instance it can use is {near.name} ({near.gpus} x {near.gpu_label}){way_out}."
    )


def unlisted_because(library: str, machine: Instance) -> str:
    """Why an instance is on no list for a library, as a clause without a period; empty if it is on one.

    Examples
    --------
    >>> unlisted_because("smp-v1", known_instance("ml.p5.48xlarge"))
    'SMP v1 cannot use ml.p5.48xlarge: its newest container, PyTorch 1.13.1 (CUDA 11.7), has no code for sm_90'
    """
    data = facts(library)
    rules, name = data["instances"], data["name"]
    if machine.custom or machine in supported_instances(library):
        return ""
    if unconfirmed(library, machine):
        return f"{machine.name} is not in a confirmed AWS list for {name}"
    if without := without_container(library, machine):
        return without
    if "families" in rules:
        families = ", ".join(rules["families"])
        return f"The SageMaker SDK takes {name} on the families {families} only, not on {machine.name}"
    if machine.gpus == 1:
        return (
            f"{machine.name} has a single GPU and is not on AWS's list for {name}, which divides a model over the GPUs"
            " of a node"
        )
    return f"{machine.name} is not on AWS's list for {name}"


def architecture_name(machine: Instance) -> str:
    """Architecture of the GPU as compilers name it: ``sm_80``."""
    return f"sm_{machine.architecture.replace('.', '')}"


def without_container(library: str, machine: Instance) -> str:
    """Why no container of a library runs on an instance, as a clause; empty if one does."""
    newest = images(library)[-1].container
    if not newest.runs_on(machine):
        return (
            f"{machine.name} has {machine.cpu_architecture} processors, and SageMaker's containers of"
            f" {facts(library)['name']} are built for {newest.cpu_architecture}"
        )
    if driving_versions(library, machine):
        return ""
    return (
        f"{facts(library)['name']} cannot use {machine.name}: its newest container, {newest.title}, has no code for"
        f" {architecture_name(machine)}"
    )


def unconfirmed(library: str, machine: Instance) -> bool:
    """Whether a library's image supports an instance that no list of AWS names."""
    return any(gpu in machine.gpu.split() for gpu in facts(library)["instances"].get("unconfirmed_gpus", ()))


def _libraries_on(machine: Instance, framework: str) -> tuple[str, ...]:
    """Libraries of a framework with the instance on a list, or without a list."""
    return tuple(
        record.name
        for record in libraries()
        if record.framework == framework and not record.compiles and machine in supported_instances(record.name)
    )


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
