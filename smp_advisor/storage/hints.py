"""Types of the fields of stored values."""

from __future__ import annotations

import builtins
import collections.abc
import types
import typing
from functools import cache
from importlib import import_module
from typing import Any

from smp_advisor.storage.kinds import kinds

__all__ = ["ADVICE", "RESULT", "members", "types_of"]

ADVICE, RESULT = "Advice", "result"
_OWN_FORM = {RESULT, "request", "call", "traced_ranks"}
"""Fields of advice with a form of their own: the listed plans, the calls that repeat it, and traced ranks."""

_ALIASES = {
    "Checkpointing": "libraries.plan",
    "Goal": "search",
    "MemoryKind": "workload.calibration",
    "Objective": "search",
    "OptimizerName": "workload.optimizer",
    "Plan": "libraries.plan",
    "Precision": "workload.job",
}
"""Names in annotations that only type checkers import, with their modules."""


class _Names(dict[str, Any]):
    """Names of annotations: those of their module, of the kinds, and those that only type checkers import."""

    def __missing__(self, name: str) -> Any:
        for place in (builtins, typing, collections.abc):
            if hasattr(place, name):
                return getattr(place, name)
        if name in kinds():
            return kinds()[name]
        return getattr(import_module(f"smp_advisor.{_ALIASES[name]}"), name)


@cache
def types_of(kind: type) -> dict[str, Any]:
    """Types of the fields of a kind."""
    module = vars(import_module(kind.__module__))
    names = _Names(module)
    annotations: dict[str, Any] = {}
    for parent in reversed(kind.__mro__):
        annotations |= vars(parent).get("__annotations__", {})
    fields: Any = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {
        name: Any if kind.__name__ == ADVICE and name in _OWN_FORM else _resolved(annotations[name], names)
        for name in fields
    }


def _resolved(annotation: Any, names: _Names) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {"__builtins__": {}}, names)  # noqa: S307 - annotations of this package


def members(hint: Any) -> tuple[Any, ...]:
    """Members of a union; the type itself for others."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
