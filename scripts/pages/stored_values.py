"""The schema of the files of `smp_advisor.save`, which the site publishes as stored_values.json."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from smp_advisor.advice.storage import ADVICE, PLAN, PUBLIC, RESULT, TYPE, kinds, members, required_fields, types_of
from smp_advisor.advice.written import FORMAT, VERSION
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
