"""The tools in a running Jupyter server, where `jupyter-server-mcp` discovers them by their entry point."""

from __future__ import annotations

import json
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

from smp_advisor.tools.interface import TOOLS, Caller, Tool, call

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPES: dict[str, Any] = {
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "array": list,
    "string": str,
}


def tools() -> list[str]:
    """The functions of the tools, as the entry point ``jupyter_server_mcp.tools`` lists them."""
    return [f"{__name__}:smp_{name}" for name in TOOLS]


def _function(tool: Tool) -> Callable[..., str]:
    """A function with the tool's arguments as annotated keywords."""
    schema = tool.schema
    parameters, required = [], []
    for name, entry in schema["properties"].items():
        kind = entry.get("type", "string")
        annotation = _TYPES[kind] if isinstance(kind, str) else str | float
        if "anyOf" in entry:
            annotation = str | list if entry["anyOf"][0]["type"] == "string" else int | str
        annotation = Annotated[annotation | None, entry.get("description", "")]
        if name in tool.required:
            required.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation))
        else:
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def answer(**arguments: Any) -> str:
        return json.dumps(call(tool.name, arguments, Caller())[1], ensure_ascii=False)

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
