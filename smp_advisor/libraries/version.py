"""Versions of a library and their container images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from smp_advisor.errors import PlanError
from smp_advisor.libraries.library import table
from smp_advisor.libraries.registry import get_library

__all__ = [
    "Image",
    "default_version",
    "facts",
    "image",
    "images",
    "release",
    "require_version",
    "versions",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The framework and Python versions that select the container of a library version."""

    library: str
    version: str
    framework_version: str
    """Version of the framework: the estimator's ``framework_version``, or ``pytorch_version`` or ``tensorflow_version``
    of Hugging Face's estimator."""
    py_version: str
    estimator: Literal["PyTorch", "HuggingFace", "TensorFlow"] = "PyTorch"
    """Class of SDK 2.x that selects the image."""
    transformers_version: str = ""
    """Version of transformers in Hugging Face's containers."""
    repository: str = "pytorch-training"
    account: str = "763104351884"
    """Registry account in most regions."""
    tag: str = ""
    """Tag of the image, if the SDK does not derive the right one from the versions."""
    min_sdk: str = ""
    """First SDK 2.x release with this version; empty for any."""
    superseded_by: str = ""
    """Newer library version that now has the same image tag."""
    released: str = ""
    """Day of the library's release (ISO 8601); empty if unknown."""
    note: str = ""
    assumed: bool = False
    """Whether the pair is inferred and not in AWS's table."""


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
    """Image of every version of a library, oldest first."""
    data = facts(library)
    return tuple(Image(library=library, **{**data.get("defaults", {}), **entry}) for entry in data["version"])


@cache
def versions(library: str) -> tuple[str, ...]:
    """Versions of a library, oldest first."""
    return tuple(entry.version for entry in images(library))


def default_version(library: str) -> str:
    """Default version of plans: the recommended one, else the newest."""
    return str(facts(library).get("recommended", versions(library)[-1]))


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
