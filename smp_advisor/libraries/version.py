"""Versions of a library, their container images, and the instances on which they run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.cluster.containers import Container, container, containers_of, unlisted
from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import instances
from smp_advisor.errors import InstanceError, PlanError
from smp_advisor.files import table
from smp_advisor.libraries.library import get_library, libraries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.cluster.table import Instance


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The container of a library version."""

    library: str
    version: str
    container: Container
    superseded_by: str = ""
    """Newer library version that now has the same image tag."""
    released: str = ""
    """Day of the library's release (ISO 8601); empty if unknown."""
    note: str = ""
    assumed: bool = False
    """Whether the pair is inferred and not in AWS's table."""

    @property
    def framework_version(self) -> str:
        """Version of PyTorch or TensorFlow."""
        return self.container.framework_version

    @property
    def py_version(self) -> str:
        """Python version that selects the image."""
        return self.container.py_version

    @property
    def estimator(self) -> Literal["PyTorch", "HuggingFace", "TensorFlow"]:
        """Class of SDK 2.x that selects the image."""
        return self.container.estimator

    @property
    def transformers_version(self) -> str:
        """Version of transformers in Hugging Face's containers."""
        return self.container.transformers_version

    @property
    def repository(self) -> str:
        """Repository of the image."""
        return self.container.repository

    @property
    def account(self) -> str:
        """Registry account in most regions."""
        return self.container.account

    @property
    def tag(self) -> str:
        """Tag of the image, if the SDK does not derive the right one from the versions."""
        return self.container.tag


@cache
def release(version: str) -> tuple[int, ...]:
    """Version as a tuple that sorts: ``(1, 15, 0)``."""
    return tuple(int(part) for part in version.split("."))


@cache
def facts(library: str) -> dict[str, Any]:
    """Versions, images and instances of a library from its data file."""
    record = get_library(library)
    return {
        **table(record.versions_package or record.package, "versions.toml"),
        "library": library,
        "name": record.title,
    }


@cache
def images(library: str) -> tuple[Image, ...]:
    """Image of every version of a library, oldest first.

    A library without versions of its own is in every container of its framework from the first on.
    """
    data = facts(library)
    if "version" not in data:
        first = release(data["first"])
        homes = data.get("repositories") or [data["repository"]]
        rows = [row for home in homes for row in containers_of(home) if release(row.framework_version) >= first]
        return tuple(Image(library=library, version=row.framework_version, container=row) for row in rows)
    repository = data.get("repository", "pytorch-training")
    return tuple(_image(library, repository, entry) for entry in data["version"])


def _image(library: str, repository: str, entry: Mapping[str, Any]) -> Image:
    own = dict(entry)
    repository, framework = own.pop("repository", repository), own.pop("framework_version")
    # A library of the user may name an image that is not in the table.
    python = own.pop("py_version", None)
    chosen = container(repository, framework) if python is None else unlisted(repository, framework, python)
    return Image(library=library, container=chosen, **own)


@cache
def versions(library: str) -> tuple[str, ...]:
    """Versions of a library, oldest first."""
    return tuple(entry.version for entry in images(library))


def default_version(library: str) -> str:
    """Default version of plans: the recommended one, else the newest."""
    return str(facts(library).get("recommended", versions(library)[-1]))


def default_of(library: str, among: Sequence[str]) -> str:
    """The default version if it is among some versions, else the newest of them."""
    usual = default_version(library)
    return usual if usual in among or not among else among[-1]


def driving_versions(library: str, instance: Instance) -> tuple[str, ...]:
    """Versions of a library whose container has code for the GPU of an instance, oldest first."""
    return tuple(entry.version for entry in images(library) if entry.container.drives(instance))


def version_with(library: str, framework: tuple[int, ...], instance: Instance) -> str:
    """Version of a library for an instance whose container has a framework version, or the nearest that it has.

    Of several, it is the default version if that is among them, else the newest. A version that no container has counts
    by fewer of its numbers: 1.12 as 1.

    Examples
    --------
    >>> from smp_advisor.cluster import Cluster
    >>> machine = Cluster("ml.p4d.24xlarge").instance
    >>> [version_with("ddp", framework, machine) for framework in ((1, 13), (1, 12), (2, 3), (2,))]
    ['1.13.1', '1.13.1', '2.3.0', '2.13.0']
    """
    driving = driving_versions(library, instance)
    for numbers in range(len(framework), 0, -1):
        same = [
            version
            for version in driving
            if release(image(library, version).framework_version)[:numbers] == framework[:numbers]
        ]
        if same:
            return default_of(library, same)
    return default_of(library, driving)


def image(library: str, version: str) -> Image:
    """Framework and Python versions that select a library version's container.

    Examples
    --------
    >>> container = image("smp-v1", "1.15.0")
    >>> container.framework_version, container.py_version
    ('1.13.1', 'py39')
    """
    require_version(library, version)
    return next(entry for entry in images(library) if entry.version == version)


def require_version(library: str, version: object) -> None:
    """Raise `PlanError` unless the library has that version."""
    names = versions(library)
    if version in names:
        return
    # By its first two numbers: difflib suggests 1.6.0 for 1.16.0.
    near = [name for name in names if isinstance(version, str) and name.split(".")[:2] == version.split(".")[:2]]
    hint = f"use {' or '.join(near)}" if near else f"known versions are {', '.join(names)}"
    raise PlanError(f"{facts(library)['name']} has no version {version!r}: {hint}.")


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
