"""Versions of the library and the container image that holds each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from smp_advisor.errors import PlanError

__all__ = ["Image", "facts", "image", "images", "release", "require_library", "require_version", "versions"]

_FILES = {"smp-v1": "smp_v1_versions.toml"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The framework and Python versions that select the container of a library version."""

    library: str
    version: str
    framework_version: str
    """PyTorch version, the estimator's ``framework_version``."""
    py_version: str
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
    require_library(library)
    return tomllib.loads((files("smp_advisor.library") / "data" / _FILES[library]).read_text(encoding="utf-8"))


@cache
def images(library: str) -> tuple[Image, ...]:
    """Image of every version of a library, oldest first."""
    return tuple(Image(library=library, **entry) for entry in facts(library)["version"])


@cache
def versions(library: str) -> tuple[str, ...]:
    """Versions of a library, oldest first."""
    return tuple(entry.version for entry in images(library))


def image(library: str, version: str) -> Image:
    """Framework and Python versions that select a library version's container.

    Examples
    --------
    >>> found = image("smp-v1", "1.15.0")
    >>> found.framework_version, found.py_version
    ('1.13.1', 'py39')
    """
    require_version(library, version)
    return next(entry for entry in images(library) if entry.version == version)


def require_library(library: str) -> None:
    """Raise `PlanError` unless the library is one that plans can be written for."""
    if library not in _FILES:
        raise PlanError(f"library must be one of {', '.join(_FILES)}, not {library!r}.")


def require_version(library: str, version: object) -> None:
    """Raise `PlanError` unless the library has that version."""
    known = versions(library)
    if version in known:
        return
    # By its first two numbers: difflib would answer 1.16.0 with 1.6.0.
    near = [one for one in known if isinstance(version, str) and one.split(".")[:2] == version.split(".")[:2]]
    hint = f"use {' or '.join(near)}" if near else f"known are {', '.join(known)}"
    raise PlanError(f"{facts(library)['name']} has no version {version!r}: {hint}.")
