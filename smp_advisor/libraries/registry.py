"""Registry of training libraries."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from smp_advisor.errors import PlanError

if TYPE_CHECKING:
    from smp_advisor.libraries.library import Library

__all__ = [
    "DEFAULT_LIBRARY",
    "LIBRARIES",
    "get_library",
    "libraries",
    "library_with",
    "register",
    "require_library",
    "unregister",
]

_FOLDERS = ("smp_v1", "smp_v1_tensorflow", "smp_v2", "training_compiler", "ddp", "fsdp")

LIBRARIES = tuple(folder.replace("_", "-") for folder in _FOLDERS)
"""Names of the libraries that are part of the package."""

DEFAULT_LIBRARY = LIBRARIES[0]
"""Library of plans without a library name."""

_REGISTERED: dict[str, Library] = {}


def get_library(name: str) -> Library:
    """Record of a library.

    Raises
    ------
    PlanError
        There is no such library.

    Examples
    --------
    >>> get_library("fsdp").title
    'FSDP'
    """
    require_library(name)
    return _REGISTERED.get(name) or _built_in(name)


def libraries() -> tuple[Library, ...]:
    """Records of all libraries, those of the package first."""
    return tuple(get_library(name) for name in dict.fromkeys((*LIBRARIES, *_REGISTERED)))


def library_with(**features: object) -> Library:
    """The first library whose record has these values.

    Examples
    --------
    >>> library_with(smdistributed=True, launcher="torchrun").title
    'SMP v2'
    """
    return next(
        record for record in libraries() if all(getattr(record, name) == value for name, value in features.items())
    )


def register(record: Library) -> None:
    """Add a library, or replace one of the same name."""
    _REGISTERED[record.name] = record


def unregister(name: str) -> None:
    """Remove a library that was added."""
    _REGISTERED.pop(name, None)


def require_library(name: object) -> None:
    """Raise `PlanError` unless there is a library of that name."""
    if not isinstance(name, str) or (name not in LIBRARIES and name not in _REGISTERED):
        raise PlanError(f"library must be one of {', '.join((*LIBRARIES, *_REGISTERED))}, not {name!r}.")


@cache
def _built_in(name: str) -> Library:
    folder = import_module(f"smp_advisor.libraries.{name.replace('-', '_')}")
    return cast("Library", folder.LIBRARY)
