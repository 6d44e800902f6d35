"""The schema of the files of `smp_advisor.save`, which the site publishes as stored_values.json."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from smp_advisor.session.storage import KINDS, adapter
from smp_advisor.session.written import FORMAT, VERSION

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the schema of a file of `save`."""
    schemas, definitions = TypeAdapter.json_schemas([(kind, "validation", adapter(kind)) for kind in KINDS])
    return {
        "$schema": _DRAFT,
        "title": "Values of smp_advisor",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "written_by": {"type": "string"},
            "kind": {"enum": [*KINDS]},
        },
        "required": ["format", "version", "kind", "value"],
        "anyOf": [
            {"properties": {"kind": {"const": kind}, "value": schemas[kind, "validation"]["items"]}} for kind in KINDS
        ],
        "$defs": _plain(definitions["$defs"]),
    }


def _plain(part: Any) -> Any:
    """The schema without docstrings, and with the texts of numbers that JSON has none for."""
    if isinstance(part, dict):
        if part.get("type") == "number":
            part = {**part, "type": ["number", "string"]}
        return {
            name: _plain(value) for name, value in part.items() if name != "description" or not isinstance(value, str)
        }
    return [_plain(value) for value in part] if isinstance(part, list) else part
