"""Arithmetic, comparison and formatting of known values, within bounds."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

from smp_advisor.reading.data import MAX_ITEMS, plain, within
from smp_advisor.reading.values import Choice, Collection, Constant, External, Mapping, Operation, Unknown, Value, same

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compare", "compute", "formatted", "is_index", "negated", "truth"]

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
_LONGEST_TEXT = 4 * MAX_ITEMS


def truth(value: Value) -> bool | None:
    """Whether it counts as true; None if that is not known."""
    if isinstance(value, Constant):
        return bool(value.value)
    if isinstance(value, Mapping):
        return True if value.entries else (None if value.open else False)
    if isinstance(value, Collection):
        return True if value.items else (None if value.open else False)
    return None


def compute(op: ast.operator, left: Value, right: Value) -> Value:
    """Result of a binary operator; an `Operation` if it cannot be computed."""
    if isinstance(left, Mapping) and isinstance(right, Mapping) and isinstance(op, ast.BitOr):
        entries = {key: replace(entry) for key, entry in {**left.entries, **right.entries}.items()}
        return within(Mapping(entries, None, left.open or right.open))
    if isinstance(left, Collection) and isinstance(right, Collection) and isinstance(op, ast.Add):
        return within(Collection([*left.items, *right.items], None, left.open or right.open))
    if isinstance(left, Collection) and isinstance(right, Constant) and isinstance(op, ast.Mult):
        if isinstance(right.value, int) and len(left.items) * right.value <= MAX_ITEMS:
            return within(Collection(left.items * right.value, None, left.open))
    elif isinstance(left, Constant):
        try:
            number = _filling(right) if isinstance(op, ast.Mod) and isinstance(left.value, str) else plain(right)
            if _bounded(op, left.value, number):
                return Constant(_ARITHMETIC[type(op)](left.value, number))
            if isinstance(left.value, str) and isinstance(op, (ast.Add, ast.Mult)):
                return Unknown(f"it grows beyond {_LONGEST_TEXT:,} characters")
        except (ArithmeticError, TypeError, ValueError, LookupError):
            pass
    return Operation(type(op).__name__, (left, right))


def _filling(value: Value) -> Any:
    """The values of ``text % values``."""
    data = plain(value)
    return tuple(data) if isinstance(data, list) else data


def _bounded(op: ast.operator, left: object, right: object) -> bool:
    """Whether the result is of a size that someone would mean."""
    if isinstance(left, str) and isinstance(op, ast.Mod):
        return len(left) < MAX_ITEMS and _WIDE.search(left) is None
    if isinstance(left, str) and isinstance(right, str):
        return isinstance(op, ast.Add) and len(left) + len(right) <= _LONGEST_TEXT
    if isinstance(left, str) and isinstance(right, int):
        return isinstance(op, ast.Mult) and len(left) * right <= _LONGEST_TEXT
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return False
    if isinstance(op, ast.Pow):
        return abs(right) <= _LARGEST_EXPONENT and abs(left) <= _LARGEST
    if isinstance(op, (ast.LShift, ast.RShift)):
        return 0 <= right <= _LARGEST_EXPONENT and abs(left) <= _LARGEST
    return abs(left) <= _LARGEST**2 and abs(right) <= _LARGEST**2


def negated(op: ast.unaryop, value: Value) -> Value:
    """Result of a unary operator."""
    decided = truth(value)
    if isinstance(op, ast.Not) and decided is not None:
        return Constant(not decided)
    if isinstance(value, Constant) and isinstance(value.value, (int, float)):
        if isinstance(op, ast.USub):
            return Constant(-value.value)
        if isinstance(op, ast.UAdd):
            return Constant(+value.value)
        if isinstance(op, ast.Invert) and type(value.value) is int:
            return Constant(~value.value)
    return Operation(type(op).__name__, (value,))


def compare(op: ast.cmpop, left: Value, right: Value) -> bool | None:
    """Result of one comparison; None if it is not known."""
    if isinstance(op, (ast.In, ast.NotIn)):
        contained = _contains(right, left)
        return None if contained is None else contained == isinstance(op, ast.In)
    equal = isinstance(op, (ast.Is, ast.Eq))
    if isinstance(left, Constant) and isinstance(right, Constant):
        if isinstance(op, (ast.Is, ast.IsNot)):
            return same(left, right) == equal
        try:
            return bool(_COMPARISONS[type(op)](left.value, right.value))
        except TypeError:
            return None
    if isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
        # A dictionary or function is never None or a number; what a call returns may be.
        if {type(left), type(right)} <= {Mapping, Collection, Constant, External} and type(left) is not type(right):
            if isinstance(left, Constant) or isinstance(right, Constant):
                return not equal
        elif equal and not isinstance(left, Choice) and same(left, right):
            return True
    return None


def _contains(owner: Value, value: Value) -> bool | None:
    if isinstance(owner, Mapping) and isinstance(value, Constant):
        return True if value.value in owner.entries else (None if owner.open else False)
    if isinstance(owner, Collection):
        if any(same(item, value) for item in owner.items):
            return True
        constants = all(isinstance(item, Constant) for item in (value, *owner.items))
        return False if constants and not owner.open else None
    if isinstance(owner, Constant) and isinstance(value, Constant) and isinstance(owner.value, str):
        return value.value in owner.value if isinstance(value.value, str) else None
    return None


def formatted(value: Value, conversion: int, spec: Value) -> str | None:
    """One part of an f-string; None if it is not known."""
    if not isinstance(value, Constant) or not isinstance(spec, Constant) or len(spec.value) > 12:
        return None
    if _WIDE.search(spec.value) is not None:
        return None
    convert = _CONVERSIONS.get(conversion)
    try:
        return format(convert(value.value) if convert else value.value, spec.value)
    except (TypeError, ValueError):
        return None


def is_index(position: object, length: int) -> TypeGuard[int]:
    """Whether a list or text of this length has `position`."""
    return isinstance(position, int) and -length <= position < length
