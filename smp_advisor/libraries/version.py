"""Versions of the library and the container image that holds each."""

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
    """Framework's version, the estimator's ``framework_version``, or its ``pytorch_version`` or ``tensorflow_version``
    where the estimator is Hugging Face's."""
    py_version: str
    estimator: Literal["PyTorch", "HuggingFace", "TensorFlow"] = "PyTorch"
    """Class of SDK 2.x that selects the image."""
    transformers_version: str = ""
    """Of Hugging Face's containers."""
    repository: str = "pytorch-training"
    account: str = "763104351884"
    """Registry account in most regions."""
    tag: str = ""
    """Of the image, where the SDK can't be relied on for it; else the SDK derives it from the versions."""
    min_sdk: str = ""
    """First SDK 2.x release that knows it, empty where any will do."""
    superseded_by: str = ""
    """Newer library version that the same image tag holds by now."""
    released: str = ""
    """Day of the library's release (ISO 8601), empty where unknown."""
    note: str = ""
    assumed: bool = False
    """Whether the pair is inferred rather than in AWS's table."""


@cache
def release(version: str) -> tuple[int, ...]:
    """Version as a tuple that sorts: ``(1, 15, 0)``."""
    return tuple(int(part) for part in version.split("."))


@cache
def facts(library: str) -> dict[str, Any]:
    """Versions, images and instances of a library as its data file states them."""
    record = get_library(library)
    return {
        **table(record.versions_package or record.package, "versions.toml"),
        "library": library,
        "name": record.title,
    }


@cache
def images(library: str) -> tuple[Image, ...]:
    """Image of every version of a library, oldest first."""
    table = facts(library)
    return tuple(Image(library=library, **{**table.get("defaults", {}), **entry}) for entry in table["version"])


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
    known_versions = versions(library)
    if version in known_versions:
        return
    # By its first two numbers: difflib would answer 1.16.0 with 1.6.0.
    near = [
        entry for entry in known_versions if isinstance(version, str) and entry.split(".")[:2] == version.split(".")[:2]
    ]
    hint = f"use {' or '.join(near)}" if near else f"known are {', '.join(known_versions)}"
    raise PlanError(f"{facts(library)['name']} has no version {version!r}: {hint}.")
