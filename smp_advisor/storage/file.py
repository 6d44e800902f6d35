"""The JSON file of a value."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from smp_advisor import files
from smp_advisor._version import __version__
from smp_advisor.errors import StorageError
from smp_advisor.files import has_too_many_values, read_bytes
from smp_advisor.storage.kinds import PUBLIC
from smp_advisor.storage.plain import TYPE, from_plain, plain

__all__ = ["FORMAT", "VERSION", "as_text", "from_text", "read_text", "write_text"]

FORMAT = "smp-advisor"
VERSION = 1
"""Version of the format. Fields with a default may be added without a new version."""
_MOST_BYTES = 16 * 2**20


def as_text(value: Any, **more: Any) -> str:
    """The JSON text of a value.

    Parameters
    ----------
    value
        A value of one of the kinds of `PUBLIC`.
    more
        Further entries of the document.

    Raises
    ------
    StorageError
        The value has a part that cannot be stored.
    """
    document = {"format": FORMAT, "version": VERSION, "written_by": __version__, "value": plain(value)}
    return json.dumps(document | more, allow_nan=False, ensure_ascii=False) + "\n"


def from_text(text: str, name: str = "The text") -> tuple[Any, dict[str, Any]]:
    """The value of a JSON text of `as_text`, and the document.

    Raises
    ------
    StorageError
        The text is not in the format, or of a newer version of it.
    """
    try:
        document = None if has_too_many_values(text) else json.loads(text)
    except (ValueError, RecursionError):
        raise StorageError(f"{name} is no JSON of stored values.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT or "value" not in document:
        raise StorageError(f"{name} holds no stored value of this package.")
    version = document.get("version")
    if version != VERSION:
        raise StorageError(
            f"{name} has version {version!r:.50} of the format, written by smp_advisor"
            f" {document.get('written_by')!r:.50}, and this package reads version {VERSION}."
        )
    data = document["value"]
    if not isinstance(data, dict) or data.get(TYPE) not in PUBLIC:
        raise StorageError(f"{name} holds no {', '.join(PUBLIC[:-1])} or {PUBLIC[-1]}.")
    try:
        return from_plain(data), document
    except RecursionError:
        raise StorageError(f"{name} is nested too deeply.") from None


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write a text to a file, which is complete or unchanged afterwards.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    target = _path(path)
    try:
        files.write_text(target, text)
    except OSError as error:
        raise StorageError(f"{os.fspath(target)!r} cannot be written: {error.strerror or error}.") from None


def _path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise StorageError(f"The path of a file must be text, not {path!r:.60}.")
    return Path(path)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file of limited size."""
    target = _path(path)
    try:
        return read_bytes(target, _MOST_BYTES).decode("utf-8")
    except OSError as error:
        raise StorageError(f"{os.fspath(target)!r} cannot be read: {error.strerror or error}.") from None
    except UnicodeError:
        raise StorageError(f"{os.fspath(target)!r} is no JSON of stored values.") from None
