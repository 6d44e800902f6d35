"""Known values as Python data: why others are not known, and arithmetic, comparison and formatting within bounds."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

from smp_advisor.review.reading.values import (
    AT_RUN_TIME,
    Argument,
    Choice,
    Collection,
    Constant,
    Entry,
    External,
    Item,
    Mapping,
    Member,
    Operation,
    Result,
    Unknown,
    Value,
    parts_of,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.review.reading.trace import Call


MAX_ITEMS = 2_000
"""Items of one loop or list, and characters of a computed text, that are followed."""
_MOST_ITEMS = 20_000
"""Items of a value, with those of its items; a shared item counts each time."""
_DEEPEST_DATA = 40
"""Levels of Python data that are followed."""
_LONGEST_SHOWN = 60
_DEEPEST = 6
_OF_DATA = frozenset(
    {"int", "float", "str", "bool", "len", "list", "tuple", "dict", "next", "iter", "min", "max", "sum"}
)


def size(value: Value) -> int:
    """Return the number of items in `value` and in its items, up to a limit; beyond the limit with too many levels."""
    level, items, depth = [value], 0, 0
    while level and items <= _MOST_ITEMS:
        if depth > _DEEPEST_DATA:
            return _MOST_ITEMS + 1
        below: list[Value] = []
        for container in level:
            if isinstance(container, Collection):
                below += container.items
            elif isinstance(container, Mapping):
                below += [entry.value for entry in container.entries.values()]
            if items + len(below) > _MOST_ITEMS:
                break
        level, items, depth = below, items + len(below), depth + 1
    return items


def within(value: Value) -> Value:
    """`value`, or an unknown value if it has too many items or levels."""
    if size(value) <= _MOST_ITEMS:
        return value
    return Unknown(f"it grows beyond {_MOST_ITEMS:,} items or {_DEEPEST_DATA} levels")


def plain(value: Value) -> Any:
    """Return the value as Python data."""
    if not isinstance(value, Constant) and size(value) > _MOST_ITEMS:
        raise LookupError
    return _plain(value)


def _plain(value: Value) -> Any:
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, Mapping) and not value.open:
        return {key: _plain(entry.value) for key, entry in value.entries.items()}
    if isinstance(value, Collection) and not value.open:
        return [_plain(item) for item in value.items]
    raise LookupError


def is_plain(value: Value) -> bool:
    """Return whether the value is known, with everything in it."""
    try:
        plain(value)
    except LookupError:
        return False
    return True


def from_plain(data: Any) -> Value:
    """Python data as a value; anything else, and data with too many items, is not known."""
    return Unknown(f"it has more than {_MOST_ITEMS:,} items") if _is_large(data) else _from_plain(data, 0)


def _is_large(data: Any) -> bool:
    pending, items = [data], 0
    while pending and items <= _MOST_ITEMS:
        container = pending.pop()
        if isinstance(container, (dict, list, tuple, set)):
            items += len(container)
            if items <= _MOST_ITEMS:
                pending += container.values() if isinstance(container, dict) else container
    return items > _MOST_ITEMS


def _from_plain(data: Any, depth: int) -> Value:
    if depth > _DEEPEST_DATA:
        return Unknown(f"it has more than {_DEEPEST_DATA} levels")
    if isinstance(data, dict):
        return Mapping({key: Entry(_from_plain(value, depth + 1)) for key, value in data.items()})
    if isinstance(data, (list, tuple, set)):
        return Collection([_from_plain(item, depth + 1) for item in data])
    if data is None or isinstance(data, (bool, int, float, str)):
        return Constant(data)
    return Unknown(f"it is a {type(data).__name__}")


def element_values(value: Value) -> list[Value] | None:
    """Return the items of an iteration over `value`; None if they are not known."""
    if isinstance(value, Collection) and not value.open:
        return list(value.items)
    if isinstance(value, Mapping) and value.complete:
        return [Constant(key) for key in value.entries]
    if isinstance(value, Constant) and isinstance(value.value, str) and len(value.value) <= MAX_ITEMS:
        return [Constant(letter) for letter in value.value]
    return None


def distinct(items: list[Value]) -> Collection:
    """Return a set of `items`; open if unknown ones can be equal."""
    constants = {item.value: item for item in reversed(items) if isinstance(item, Constant)}
    if len(constants) == len(items):
        return Collection(list(items))
    if all(isinstance(item, Constant) for item in items):
        return Collection(list(reversed(constants.values())))
    return Collection(list(items), open="its items can be equal")


def unpack(mapping: Mapping, value: Value) -> None:
    """Add the entries of ``**value``."""
    if isinstance(value, Mapping):
        mapping.entries |= {key: replace(entry) for key, entry in value.entries.items()}
        mapping.open = mapping.open or value.open
    else:
        mapping.open = reason(value)


def shown(node: ast.expr) -> str:
    """Return the text of an expression, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def reason(value: Value, depth: int = 0) -> str:
    """Return why `value` is not known, as a clause: "it depends on `args.large`"."""
    if depth > _DEEPEST:
        return AT_RUN_TIME
    if isinstance(value, (Unknown, Choice)) and value.why:
        return value.why if isinstance(value.why, str) else f"it depends on `{shown(value.why)}`"
    if isinstance(value, Argument):
        default = f", {value.default.value!r} by default" if isinstance(value.default, Constant) else ""
        return f"it is the command-line option --{value.name.replace('_', '-')}{default}"
    if isinstance(value, Result):
        return _reason_of_call(value.call, depth)
    if isinstance(value, Item) and isinstance(value.owner, Mapping) and isinstance(value.key, Constant):
        return value.owner.open or f"the key {value.key.value!r} is not in the dictionary"
    if isinstance(value, Item) and isinstance(value.owner, External) and value.owner.path == "os.environ":
        return _variable(value.key)
    if isinstance(value, External):
        return f"{value.path} is defined elsewhere"
    if isinstance(value, (Mapping, Collection)) and value.open:
        return value.open
    parts = _parts(value)
    return next((reason(part, depth + 1) for part in parts if not is_plain(part)), AT_RUN_TIME)


def _reason_of_call(call: Call, depth: int) -> str:
    if call.name in ("os.environ.get", "os.getenv"):
        return _variable(call.argument("key", 0))
    if isinstance(call.receiver, (Unknown, Argument, Choice, Operation)):
        return reason(call.receiver, depth + 1)
    if isinstance(call.receiver, (Constant, Mapping, Collection)) or (call.name in _OF_DATA and call.arguments):
        arguments = (*call.arguments, *call.keywords.values())
        unknown = next((argument for argument in arguments if not is_plain(argument)), None)
        if unknown is not None:
            return reason(unknown, depth + 1)
    name = call.name or call.method
    if isinstance(call.receiver, Result) and call.receiver.call.name:
        name = f"{call.receiver.call.name}.{call.method}"
    return f"the result of {name or 'the call'}(...) is known only when it runs"


def _variable(key: Value | None) -> str:
    name = f" {key.value}" if isinstance(key, Constant) else ""
    return f"it is read from the environment variable{name}"


def _parts(value: Value) -> tuple[Value, ...]:
    """Return the values that decide whether `value` is known."""
    if isinstance(value, Choice):
        return value.alternatives
    if isinstance(value, Item) and value.key is not None:
        return (value.owner, value.key)
    return (value.owner,) if isinstance(value, Member) else parts_of(value)


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
LONGEST_TEXT = 4 * MAX_ITEMS


def truth(value: Value) -> bool | None:
    """Return whether it counts as true; None if that is not known."""
    if isinstance(value, Constant):
        return bool(value.value)
    if isinstance(value, Mapping):
        return True if value.entries else (None if value.open else False)
    if isinstance(value, Collection):
        return True if value.items else (None if value.open else False)
    return None


def compute(op: ast.operator, left: Value, right: Value) -> Value:
    """Return the result of a binary operator; an `Operation` if it cannot be computed."""
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
            number = plain(right)
            if isinstance(number, list) and isinstance(op, ast.Mod) and isinstance(left.value, str):
                number = tuple(number)
            if _bounded(op, left.value, number):
                return Constant(_ARITHMETIC[type(op)](left.value, number))
            if isinstance(left.value, str) and isinstance(op, (ast.Add, ast.Mult)):
                return Unknown(f"it grows beyond {LONGEST_TEXT:,} characters")
        except (ArithmeticError, TypeError, ValueError, LookupError):
            pass
    return Operation(type(op).__name__, (left, right))


def _bounded(op: ast.operator, left: object, right: object) -> bool:
    """Return whether the result is of a size that someone would mean."""
    if isinstance(left, str) and isinstance(op, ast.Mod):
        return len(left) < MAX_ITEMS and _WIDE.search(left) is None
    if isinstance(left, str) and isinstance(right, str):
        return isinstance(op, ast.Add) and len(left) + len(right) <= LONGEST_TEXT
    if isinstance(left, str) and isinstance(right, int):
        return isinstance(op, ast.Mult) and len(left) * right <= LONGEST_TEXT
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return False
    if isinstance(op, ast.Pow):
        return abs(right) <= _LARGEST_EXPONENT and abs(left) <= _LARGEST
    if isinstance(op, (ast.LShift, ast.RShift)):
        return 0 <= right <= _LARGEST_EXPONENT and abs(left) <= _LARGEST
    return abs(left) <= _LARGEST**2 and abs(right) <= _LARGEST**2


def negated(op: ast.unaryop, value: Value) -> Value:
    """Return the result of a unary operator."""
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
    """Return the result of one comparison; None if it is not known."""
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
    """Return one part of an f-string; None if it is not known."""
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
    """Return whether a list or text of this length has `position`."""
    return isinstance(position, int) and -length <= position < length
