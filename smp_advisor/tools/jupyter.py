"""The tools in a running Jupyter server, where `jupyter-server-mcp` discovers them by their entry point."""

from __future__ import annotations

import json
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from smp_advisor.core.words import plain
from smp_advisor.tools.interface import TOOLS, Caller, Tool, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def tools() -> list[str]:
    """Return the functions of the tools, as the entry point ``jupyter_server_mcp.tools`` lists them."""
    return [f"{__name__}:smp_{name}" for name in TOOLS]


_TYPES: dict[str, Any] = {
    "integer": int, "number": float, "boolean": bool, "object": dict[str, Any], "array": list, "string": str
}  # fmt: skip
_CONSTRAINTS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default")


def _kind(entry: Mapping[str, Any]) -> Any:
    """Return the Python type of a JSON schema."""
    if "enum" in entry:
        return Literal[tuple(entry["enum"])]
    if "const" in entry:
        return Literal[entry["const"]]
    if "anyOf" in entry:
        return Union[tuple(map(_kind, entry["anyOf"]))]  # noqa: UP007 - built from a list
    if isinstance(entry.get("type"), list):
        return Union[tuple(_TYPES[name] for name in entry["type"])]  # noqa: UP007
    if entry.get("type") == "array" and "items" in entry:
        return list[_kind(entry["items"])]  # type: ignore[misc]
    return _TYPES[entry.get("type", "string")]


def _function(tool: Tool) -> Callable[..., str]:
    """A function with the tool's arguments as annotated keywords: the schema that the protocol has, explained."""
    from pydantic import Field  # there with the server

    schema = tool.schema_with(explained=True)
    parameters, required = [], []
    for name, entry in schema["properties"].items():
        kind: Any = _kind(entry) | int | float if name == "model" else _kind(entry)
        limits = {key: entry[key] for key in _CONSTRAINTS if key in entry}
        about = Field(description=entry.get("description", ""), json_schema_extra=limits)
        if name in tool.required:
            required.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, about]))
        else:
            annotation = Annotated[kind | None, about]
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def answer(**arguments: Any) -> str:
        return plain(json.dumps(call(tool.name, arguments, Caller())[1], ensure_ascii=False))

    answer.__name__ = answer.__qualname__ = f"smp_{tool.name}"
    answer.__doc__ = tool.description
    answer.__signature__ = Signature([*required, *parameters])  # type: ignore[attr-defined]
    answer.__annotations__ = {parameter.name: parameter.annotation for parameter in (*required, *parameters)}
    return answer


def __getattr__(name: str) -> Any:
    tool = TOOLS.get(name.removeprefix("smp_"))
    if tool is None or not name.startswith("smp_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function(tool)
