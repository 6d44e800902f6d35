"""Arithmetic, comparison and formatting of what is known, within bounds."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.cells.state import MAX_ITEMS
from smp_advisor.estimators.values import Entry, External, Listing, Made, Scalar, Span, Table, Unknown, Value, same

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compare", "compute", "formatted", "negated", "truth"]

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}
_WIDE = re.compile(r"[0-9]{4,}|\*")
"""A width or precision that nobody would mean, or that is computed."""
_LARGEST = 10**18
_LARGEST_EXPONENT = 64


def truth(value: Value) -> bool | None:
    """Whether it counts as true; None where that is not known."""
    if isinstance(value, Scalar):
        return bool(value.value)
    if isinstance(value, Table):
        return True if value.entries else (None if value.open else False)
    return bool(value.items) if isinstance(value, Listing) else None


def compute(op: ast.operator, left: Value, right: Value, span: Span | None) -> Value:
    """The result of a binary operator."""
    if isinstance(left, Table) and isinstance(right, Table) and isinstance(op, ast.BitOr):
        entries = {**left.entries, **right.entries}
        return Table({key: _copied(entry) for key, entry in entries.items()}, None, left.open or right.open)
    if isinstance(left, Listing) and isinstance(right, Listing) and isinstance(op, ast.Add):
        return Listing([*left.items, *right.items])
    if isinstance(left, Scalar) and isinstance(right, Scalar) and _bounded(op, left.value, right.value):
        try:
            return Scalar(_ARITHMETIC[type(op)](left.value, right.value), span)
        except (ArithmeticError, TypeError, ValueError, KeyError):
            return Unknown("it cannot be computed", span)
    for side in (left, right):
        if isinstance(side, Unknown):
            return Unknown(side.why, span)
    return Unknown("it is computed from what is known only when it runs", span)


def _copied(entry: Entry) -> Entry:
    return Entry(entry.value, entry.span, entry.value_span, entry.key_span)


def _bounded(op: ast.operator, left: object, right: object) -> bool:
    """Whether the result is of a size that someone would mean."""
    if isinstance(left, str) and isinstance(op, ast.Mod):
        return len(left) < MAX_ITEMS and _WIDE.search(left) is None
    if isinstance(left, str) and isinstance(right, str):
        return isinstance(op, ast.Add) and len(left) + len(right) <= 4 * MAX_ITEMS
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return False
    if isinstance(op, ast.Pow):
        return abs(right) <= _LARGEST_EXPONENT and abs(left) <= _LARGEST
    if isinstance(op, (ast.LShift, ast.RShift)):
        return 0 <= right <= _LARGEST_EXPONENT and abs(left) <= _LARGEST
    return abs(left) <= _LARGEST**2 and abs(right) <= _LARGEST**2


def negated(op: ast.unaryop, value: Value, span: Span | None) -> Value:
    """The result of a unary operator."""
    if isinstance(op, ast.Not):
        known = truth(value)
        return Unknown(_why(value), span) if known is None else Scalar(not known, span)
    if isinstance(value, Scalar) and isinstance(value.value, (int, float)):
        if isinstance(op, ast.USub):
            return Scalar(-value.value, span)
        if isinstance(op, ast.UAdd):
            return Scalar(+value.value, span)
        if isinstance(value.value, int):
            return Scalar(~value.value, span)
    return Unknown(_why(value), span)


def _why(value: Value) -> str:
    return value.why if isinstance(value, Unknown) else "it is computed from what is known only when it runs"


def compare(op: ast.cmpop, left: Value, right: Value) -> bool | None:
    """The result of one comparison; None where it is not known."""
    if isinstance(op, (ast.In, ast.NotIn)):
        found = _contains(right, left)
        return None if found is None else found == isinstance(op, ast.In)
    if isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) and _is_object(left) != _is_object(right):
        # A dictionary or function is never None or a number; what a call returns may be.
        if {type(left), type(right)} <= {Table, Listing, Scalar, External}:
            return isinstance(op, (ast.IsNot, ast.NotEq))
        return None
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        if isinstance(op, (ast.Is, ast.IsNot)):
            return same(left, right) == isinstance(op, ast.Is)
        try:
            return bool(_COMPARISONS[type(op)](left.value, right.value))
        except TypeError:
            return None
    if isinstance(op, (ast.Eq, ast.Is)) and same(left, right):
        return True
    return None


def _is_object(value: Value) -> bool:
    return not isinstance(value, Scalar)


def _contains(owner: Value, value: Value) -> bool | None:
    if isinstance(owner, Table) and isinstance(value, Scalar):
        return True if value.value in owner.entries else (None if owner.open else False)
    if isinstance(owner, Listing):
        if any(same(item, value) for item in owner.items):
            return True
        return False if isinstance(value, Scalar) and all(isinstance(item, Scalar) for item in owner.items) else None
    if isinstance(owner, Scalar) and isinstance(value, Scalar) and isinstance(owner.value, str):
        return value.value in owner.value if isinstance(value.value, str) else None
    return None


def formatted(value: Value, conversion: int, spec: str) -> str | None:
    """A part of an f-string; None where it is not known."""
    if isinstance(value, Made) or not isinstance(value, Scalar) or len(spec) > 12:
        return None
    if _WIDE.search(spec) is not None:
        return None
    shown = _CONVERSIONS.get(conversion)
    try:
        return format(shown(value.value) if shown else value.value, spec)
    except (TypeError, ValueError):
        return None
