"""Versions of a library and their container images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.cluster.containers import Container, container, containers_of, unlisted
from smp_advisor.errors import PlanError
from smp_advisor.libraries.library import table
from smp_advisor.libraries.registry import get_library

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.cluster.instance import Instance

__all__ = [
    "Image",
    "default_of",
    "default_version",
    "driving_versions",
    "facts",
    "image",
    "images",
    "release",
    "require_version",
    "version_with",
    "versions",
]


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
    repository = data.get("repository", "pytorch-training")
    if "version" not in data:
        first = release(data["first"])
        rows = [row for row in containers_of(repository) if release(row.framework_version) >= first]
        return tuple(Image(library=library, version=row.framework_version, container=row) for row in rows)
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
    return usual if usual in among else among[-1]


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
    ['1.13.1', '1.13.1', '2.3.0', '2.8.0']
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
    return default_version(library)


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
