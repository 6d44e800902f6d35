"""Releases: versions of a library with their containers, and the transformers that jobs install."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.containers import Container, container, containers_of, unlisted
from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import instances
from smp_advisor.core.files import rows, sentence, table
from smp_advisor.errors import InstanceError, PlanError
from smp_advisor.libraries.library import get_library, libraries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.table import Instance


@dataclass(frozen=True, kw_only=True, slots=True)
class Image(Container):
    library: str
    version: str
    superseded_by: str = ""
    """Newer library version that now has the same image tag."""
    released: str = ""
    """Day of the library's release (ISO 8601); empty if unknown."""
    note: str = ""
    assumed: bool = False
    """Whether the pair is inferred and not in AWS's table."""


@cache
def release(version: str) -> tuple[int, ...]:
    """Return the version as a tuple that sorts: ``(1, 15, 0)``."""
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
    data = facts(library)
    homes = data.get("repositories") or [data.get("repository", "pytorch-training")]
    plain = [(home, row.framework_version) for home in homes for row in containers_of(home) if "version" not in data]
    of_plain = [
        {"repository": home, "framework_version": version, "version": version}
        for home, version in plain
        if release(version) >= release(data["first"])
    ]
    return tuple(_image(library, homes[0], **entry) for entry in data.get("version", of_plain))


def _image(library: str, home: str, *, framework_version: str, py_version: str = "", **own: Any) -> Image:
    # A library of the user may name an image that is not in the table.
    names = own.pop("repository", home), framework_version
    row = unlisted(*names, py_version) if py_version else container(*names)
    return Image(**{field.name: getattr(row, field.name) for field in fields(Container)}, library=library, **own)


@cache
def versions(library: str) -> tuple[str, ...]:
    """Return the versions of a library, oldest first."""
    return tuple(entry.version for entry in images(library))


def default_version(library: str) -> str:
    """Default version of plans: the recommended one, else the newest."""
    return str(facts(library).get("recommended", versions(library)[-1]))


def default_of(library: str, among: Sequence[str]) -> str:
    """Return the default version if it is among some versions, else the newest of them."""
    usual = default_version(library)
    return usual if usual in among or not among else among[-1]


def driving_versions(library: str, instance: Instance) -> tuple[str, ...]:
    """Return the versions of a library whose container has code for the GPU of an instance, oldest first."""
    return tuple(entry.version for entry in images(library) if entry.drives(instance))


def version_on(library: str, version: str, instance: Instance) -> str:
    """Version of a plan, or, for the default one, the newest whose container has code for the instance's GPU."""
    driving = () if instance.custom else driving_versions(library, instance)
    return driving[-1] if driving and version == default_version(library) and version not in driving else version


def version_with(library: str, framework: tuple[int, ...], instance: Instance) -> str:
    """Version of a library for an instance whose container has a framework version, or the nearest that it has."""
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
    """Framework and Python versions that select a library version's container."""
    require_version(library, version)
    return _images_by_version(library)[version]


@cache
def _images_by_version(library: str) -> dict[str, Image]:
    return {entry.version: entry for entry in reversed(images(library))}


def require_version(library: str, version: object) -> None:
    names = versions(library)
    if version in names:
        return
    # By its first two numbers: difflib suggests 1.6.0 for 1.16.0.
    near = [name for name in names if isinstance(version, str) and name.split(".")[:2] == version.split(".")[:2]]
    hint = f"use {' or '.join(near)}" if near else f"known versions are {', '.join(names)}"
    raise PlanError(f"{facts(library)['name']} has no version {version!r}: {hint}.")


@cache
def supported_instances(library: str) -> tuple[Instance, ...]:
    """Return the instances that AWS lists for a library, or that the SDK accepts if there is no list."""
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
    """Raise `InstanceError` unless the library runs on an instance; what to check before relying on it, if anything."""
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
    same = (record for record in libraries() if record.framework == get_library(library).framework)
    names = [record.name for record in same if not record.compiles and is_supported(record.name, machine)]
    *earlier, last = [f"{name!r}" for name in names] or [""]
    choices = f"{', '.join(earlier)} or {last}" if earlier else last
    way_out = f"; on {machine.name}, use library={choices}" if last else ""
    raise InstanceError(sentence("libraries", "nearest_instance", reason=reason, near=near, way_out=way_out))


def is_supported(library: str, machine: Instance) -> bool:
    """Return whether a library runs on an instance, whatever its price and measured figures."""
    return any(machine.name == entry.name for entry in supported_instances(library))


def unlisted_because(library: str, machine: Instance) -> str:
    """Return why an instance is on no list for a library, as a clause without a period; empty if it is on one."""
    data = facts(library)
    rules, name = data["instances"], data["name"]
    if machine.custom or is_supported(library, machine):
        return ""
    if unconfirmed(library, machine):
        return f"{machine.name} is not in a confirmed AWS list for {name}"
    if without := without_container(library, machine):
        return without
    if "families" in rules:
        families = ", ".join(rules["families"])
        return f"The SageMaker SDK takes {name} on the families {families} only, not on {machine.name}"
    if machine.gpus == 1:
        return sentence("libraries", "single_gpu", machine=machine, library=name)
    return f"{machine.name} is not on AWS's list for {name}"


def architecture_name(machine: Instance) -> str:
    """Architecture of the GPU as compilers name it: ``sm_80``."""
    return f"sm_{machine.architecture.replace('.', '')}"


def without_container(library: str, machine: Instance) -> str:
    """Return why no container of a library runs on an instance, as a clause; empty if one does."""
    newest = images(library)[-1]
    if not newest.runs_on(machine):
        return sentence("libraries", "processor", machine=machine, library=facts(library)["name"], newest=newest)
    if driving_versions(library, machine):
        return ""
    values = {"machine": machine, "library": facts(library)["name"], "architecture": architecture_name(machine)}
    return sentence("libraries", "no_container", newest=newest, **values)


def unconfirmed(library: str, machine: Instance) -> bool:
    """Return whether a library's image supports an instance that no list of AWS names."""
    return any(gpu in machine.gpu.split() for gpu in facts(library)["instances"].get("unconfirmed_gpus", ()))


def nearest_supported(library: str, machine: Instance) -> Instance:
    """Supported instance most similar to another in GPU memory (less counts twice), GPUs per node and price."""

    def distance(candidate: Instance) -> float:
        memory = math.log2(candidate.usable_gpu_memory_gib / machine.usable_gpu_memory_gib)
        gpus = abs(math.log2(candidate.gpus / machine.gpus))
        price = 0.0
        if candidate.usd_per_hour and machine.usd_per_hour:
            price = abs(math.log2(candidate.usd_per_hour / machine.usd_per_hour))
        return (memory if memory >= 0 else -2 * memory) + gpus + price

    return min(suggested_instances(library), key=distance)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersFamily:
    """A family of models that the generated script can build."""

    task: str
    since: str
    """First release with the family, of those that the scripts install."""
    sdpa: str
    """First release whose code of the family runs PyTorch's fused attention; empty for none."""
    unfused: str = ""
    """First later release whose code no longer runs it; empty for none."""
    softmax: str = ""
    """Precision of the softmax in eager attention, ``fp32`` or ``native``; empty where all releases agree."""

    def is_fused(self, transformers_version: str) -> bool:
        """Return whether a release runs fused attention."""
        runs = release(transformers_version)
        return bool(self.sdpa) and release(self.sdpa) <= runs and not (self.unfused and release(self.unfused) <= runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    library: str
    framework_version: str
    repository: str
    """Repository of the container."""
    transformers_version: str
    """Release of the container or, if it has none, of the generated script; empty if no script builds the family."""
    from_container: bool
    """Whether transformers is part of the container."""


def _releases() -> dict[str, Any]:
    return dict(table("smp_advisor.libraries", "data/transformers_releases.toml")["release"])


@cache
def transformers_families() -> dict[str, TransformersFamily]:
    return {
        row["family"]: TransformersFamily(
            task=row["task"], since=row["release"], sdpa=row["sdpa"], softmax=row["softmax"], unfused=row["unfused"]
        )
        for row in rows("smp_advisor.libraries", "data/transformers_families.csv")
    }


def reserved_positions(family: str) -> int:
    """Return the rows of the position embeddings of a family that no token of a sequence uses."""
    positions = table("smp_advisor.libraries", "data/transformers_releases.toml")["positions"]
    return 2 if family in positions["reserves_two"] else 0


@cache
def has_plain_head(family: str) -> bool:
    """Whether the logits of a causal family are its last states times its output weight, so that parts have a loss."""
    entry = transformers_families().get(family)
    heads = table("smp_advisor.libraries", "data/transformers_releases.toml")["heads"]
    return entry is not None and entry.task == "causal" and family not in heads["scaled_logits"]


def oldest_script_release() -> str:
    """Return the release in the containers of Training Compiler, with which SMP v1 replaces layers."""
    return str(_releases()["distributed"])


def newest_script_release() -> str:
    return str(max(_releases()["minimum_pytorch"], key=release))


def smp_v1_release(since: str) -> str | None:
    """Release with which SMP v1 and Training Compiler replace layers, or one with a family; None without one."""
    chosen = (str(_releases()["distributed"]), str(_releases()["newer"]))
    return next((version for version in chosen if release(since) <= release(version)), None)


def script_release(pytorch_version: str, since: str) -> str | None:
    """Return the release that a script installs for a version of PyTorch, or the first that has the family."""
    releases = _releases()["by_pytorch"]
    earlier = [first for first in releases if release(first) <= release(pytorch_version)]
    if not earlier:
        return None
    usual = str(releases[max(earlier, key=release)])
    if release(since) <= release(usual):
        return usual
    minimum = _releases()["minimum_pytorch"].get(since)
    return None if minimum is None or release(pytorch_version) < release(minimum) else since


def installed_by(library: str, family: str, version: str = "") -> Installed:
    container = image(library, version if version in versions(library) else default_version(library))
    entry = transformers_families().get(family)
    scripted = "" if entry is None else script_release(container.framework_version, entry.since) or ""
    return Installed(
        library=library,
        framework_version=container.framework_version,
        repository=container.repository,
        transformers_version=container.transformers_version or scripted,
        from_container=bool(container.transformers_version),
    )
