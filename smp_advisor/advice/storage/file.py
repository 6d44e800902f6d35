"""The JSON file of a value, and the schema of the files."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from smp_advisor import files
from smp_advisor._version import __version__
from smp_advisor.advice.storage.plain import (
    ADVICE,
    PLAN,
    PUBLIC,
    RESULT,
    TYPE,
    from_plain,
    kinds,
    members,
    plain,
    required_fields,
    types_of,
)
from smp_advisor.errors import StorageError
from smp_advisor.files import has_too_many_values, read_bytes
from smp_advisor.libraries.library import libraries
from smp_advisor.libraries.plan import Plan

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[Any, dict[str, Any]] = {
    Any: {},
    bool: {"type": "boolean"},
    float: {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]},
    int: {"type": "integer"},
    str: {"type": "string"},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
}


def json_schema() -> dict[str, Any]:
    """The schema of a file of `save` as a dictionary."""
    definitions = {name: _object(name, kind) for name, kind in sorted(kinds().items())}
    definitions |= {_plan_name(record.name): _object(PLAN, record.plan) for record in libraries()}
    definitions[PLAN] = {"anyOf": [_reference(_plan_name(record.name)) for record in libraries()]}
    return {
        "$schema": _DRAFT,
        "title": "Values of smp_advisor",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "written_by": {"type": "string"},
            "value": {"anyOf": [_reference(name) for name in PUBLIC]},
        },
        "required": ["format", "version", "value"],
        "$defs": definitions,
    }


def _plan_name(library: str) -> str:
    return f"{PLAN}.{library}"


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _object(name: str, kind: type) -> dict[str, Any]:
    properties: dict[str, Any] = {TYPE: {"const": name}}
    for field, hint in types_of(kind).items():
        properties[field] = {"type": "object"} if (name, field) == (ADVICE, RESULT) else _of(hint)
    if name == PLAN:
        properties["library"] = {"const": next(record.name for record in libraries() if record.plan is kind)}
    required = {TYPE, *required_fields(kind), *(["library"] if name == PLAN else [])}
    return {"type": "object", "properties": properties, "required": sorted(required), "additionalProperties": False}


def _of(hint: Any) -> dict[str, Any]:
    """Schema of one type."""
    parts = members(hint)
    if len(parts) > 1:
        return {"anyOf": [_of(part) for part in parts]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Plan:
        return _reference(PLAN)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (tuple, frozenset):
        if origin is tuple and arguments[-1] is not ...:
            return {"type": "array", "prefixItems": [_of(part) for part in arguments], "items": False}
        return {"type": "array", "items": _of(arguments[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    return _PLAIN[hint] if hint in _PLAIN else _reference(hint.__name__)


FORMAT = "smp-advisor"
VERSION = 1
"""Version of the format. Fields with a default may be added without a new version."""
_MOST_BYTES = 16 * 2**20


def as_text(value: Any, **more: Any) -> str:
    """The JSON text of a value."""
    document = {"format": FORMAT, "version": VERSION, "written_by": __version__, "value": plain(value)}
    return json.dumps(document | more, allow_nan=False, ensure_ascii=False) + "\n"


def from_text(text: str, name: str = "The text") -> tuple[Any, dict[str, Any]]:
    """The value of a JSON text of `as_text`, and the document."""
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
    """Write a text to a file, which is complete or unchanged afterwards."""
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
