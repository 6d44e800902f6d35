"""Types of the arguments of public calls: a wrong one is named in a sentence, not found deep in the package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["require_path", "require_types"]

_LONGEST_PATH = 4096
"""Bytes of a path in Linux."""


def require_types(arguments: Mapping[str, tuple[object, type | tuple[type, ...]]], call: str) -> None:
    """Refuse an argument of another type.

    Parameters
    ----------
    arguments
        Value and accepted types of each argument, by its name. True and False are no whole numbers.
    call
        Name of the function, for the sentence.

    Raises
    ------
    AdvisorError
        A value has another type.

    Examples
    --------
    >>> require_types({"steps": (1, int)}, "undo")
    """
    for name, (value, types) in arguments.items():
        kinds = types if isinstance(types, tuple) else (types,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise AdvisorError(f"{call}() requires for {name} a value of type {names}, not {value!r:.80}.")


def require_path(path: object, call: str) -> None:
    """Refuse a value that is no path of a file.

    Raises
    ------
    AdvisorError
        It is neither text nor a path, or no system has such a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise AdvisorError(f"{call}() requires the path of a file, not {path!r:.80}.")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text or len(text) > _LONGEST_PATH:
        raise AdvisorError(f"{call}() requires the path of a file, not {text!r:.80}.")
