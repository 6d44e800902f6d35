"""Python's own functions and methods, computed on known values within bounds."""

from __future__ import annotations

import ast
import json
import math
import posixpath
from collections.abc import Callable
from dataclasses import replace
from string import Formatter
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.branches import ABSENT
from smp_advisor.reading.operators import truth
from smp_advisor.reading.values import (
    MAX_ITEMS,
    Collection,
    Constant,
    Entry,
    Mapping,
    Unknown,
    Value,
    choice,
    distinct,
    element_values,
    from_plain,
    plain,
    settled,
    unpack,
)

if TYPE_CHECKING:
    from smp_advisor.reading.run import Run
    from smp_advisor.reading.trace import Call

__all__ = ["FUNCTIONS", "call_method", "dictionary"]

Positional = tuple[Value, ...]
Named = dict[str, Value]
Known = Callable[[Positional, Named], Value | None]

_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError, SyntaxError, MemoryError)
_LONGEST_TEXT = 4 * MAX_ITEMS
_LONGEST_DATA = 100_000
_TEXT_METHODS = frozenset(
    [
        "lower",
        "upper",
        "title",
        "capitalize",
        "strip",
        "lstrip",
        "rstrip",
        "removeprefix",
        "removesuffix",
        "replace",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "join",
        "format",
        "startswith",
        "endswith",
        "count",
        "find",
        "isdigit",
    ]
)
_CHANGING = frozenset(
    [
        "pop",
        "popitem",
        "setdefault",
        "clear",
        "insert",
        "remove",
        "sort",
        "reverse",
        "append",
        "extend",
        "add",
        "update",
        "discard",
    ]
)


def _of_data(function: Callable[..., Any]) -> Known:
    """A function of plain data."""

    def apply(positional: Positional, named: Named) -> Value | None:
        try:
            arguments = [plain(value) for value in positional]
            if any(isinstance(data, str) and len(data) > _LONGEST_DATA for data in arguments):
                return None
            return from_plain(function(*arguments, **{key: plain(value) for key, value in named.items()}))
        except _FAILURES:
            return None

    return apply


def _of_items(function: Callable[[list[Value]], Value | None]) -> Known:
    """A function of the items of its only argument."""

    def apply(positional: Positional, named: Named) -> Value | None:
        items = element_values(positional[0]) if len(positional) == 1 and not named else None
        return None if items is None else function(items)

    return apply


def _length(items: list[Value]) -> Value:
    return Constant(len(items))


def _next(items: list[Value]) -> Value | None:
    return items[0] if items else None


def _any(items: list[Value]) -> Value | None:
    truths = [truth(item) for item in items]
    return Constant(value=True) if True in truths else None if None in truths else Constant(value=False)


def _all(items: list[Value]) -> Value | None:
    truths = [truth(item) for item in items]
    return Constant(value=False) if False in truths else None if None in truths else Constant(value=True)


def _list(positional: Positional, _named: Named) -> Value | None:
    items = element_values(positional[0]) if positional else []
    return None if items is None else Collection(items)


def _enumerate(positional: Positional, named: Named) -> Value | None:
    start = named.get("start", positional[1] if len(positional) > 1 else Constant(0))
    items = element_values(positional[0]) if positional else None
    if items is None or not isinstance(start, Constant) or not isinstance(start.value, int):
        return None
    return Collection([Collection([Constant(number), item]) for number, item in enumerate(items, start.value)])


def _mapped(positional: Positional, _named: Named) -> Value | None:
    """``map`` of a function of this file."""
    function = FUNCTIONS.get(getattr(positional[0], "path", "")) if len(positional) == 2 else None
    items = element_values(positional[1]) if function is not None else None
    results = [function((item,), {}) for item in items] if function is not None and items is not None else [None]
    return None if None in results else Collection([result for result in results if result is not None])


def _zip(positional: Positional, _named: Named) -> Value | None:
    columns = [element_values(value) for value in positional]
    known = [column for column in columns if column is not None]
    if len(known) < len(columns):
        return None
    return Collection([Collection(list(row)) for row in zip(*known, strict=False)])


def _copied(positional: Positional, _named: Named) -> Value | None:
    """``copy.deepcopy``, of data."""
    only = positional[0] if len(positional) == 1 else None
    return settled(only) if isinstance(only, (Mapping, Collection, Constant)) else None


def _shallow(positional: Positional, _named: Named) -> Value | None:
    only = positional[0] if len(positional) == 1 else None
    if isinstance(only, Mapping):
        return Mapping({key: replace(entry) for key, entry in only.entries.items()}, only.span, only.open)
    return Collection(list(only.items), only.span, only.open) if isinstance(only, Collection) else None


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > MAX_ITEMS:
        raise ValueError
    return list(numbers)


def _largest(*values: Any, **options: Any) -> Any:
    return max(*values, **options)


def _smallest(*values: Any, **options: Any) -> Any:
    return min(*values, **options)


def _keys_of(data: Any, value: Any = None) -> dict[Any, Any]:
    return dict.fromkeys(data, value)


FUNCTIONS: dict[str, Known] = {
    **{function.__name__: _of_data(function) for function in (int, float, str, bool, abs, round, sum, sorted)},
    **{f"math.{name}": _of_data(getattr(math, name)) for name in ("prod", "ceil", "floor", "gcd", "log2", "sqrt")},
    "min": _of_data(_smallest),
    "max": _of_data(_largest),
    "range": _of_data(_range),
    "dict.fromkeys": _of_data(_keys_of),
    "os.path.join": _of_data(posixpath.join),
    "os.path.basename": _of_data(posixpath.basename),
    "json.dumps": _of_data(json.dumps),
    "json.loads": _of_data(json.loads),
    "ast.literal_eval": _of_data(ast.literal_eval),
    "len": _of_items(_length),
    "next": _of_items(_next),
    "any": _of_items(_any),
    "all": _of_items(_all),
    "reversed": _of_items(lambda items: Collection(items[::-1])),
    **dict.fromkeys(("list", "tuple", "iter"), _list),
    "set": _of_items(distinct),
    "enumerate": _enumerate,
    "map": _mapped,
    "zip": _zip,
    "copy.copy": _shallow,
    "copy.deepcopy": _copied,
}


def dictionary(event: Call) -> Value | None:
    """``dict(...)`` and namespaces made of keywords."""
    mapping = Mapping({}, event.named.span, event.named.open)
    if event.arguments:
        first = event.arguments[0]
        if isinstance(first, Collection) and not first.open:
            pairs = [pair.items for pair in first.items if isinstance(pair, Collection) and len(pair.items) == 2]
            entries = {key.value: Entry(value) for key, value in pairs if isinstance(key, Constant)}
            first = Mapping(entries) if len(pairs) == len(first.items) else Unknown("its keys are computed")
        unpack(mapping, first)
        mapping.span = None if mapping.entries and not event.named.entries else mapping.span
    mapping.entries |= event.named.entries
    return mapping


def call_method(run: Run, event: Call) -> Value | None:
    """A method of data; None if its result is not known, and then neither is what it changes."""
    owner, name = event.receiver, event.method
    result: Value | None = None
    if isinstance(owner, Mapping):
        result = _method_of_mapping(run, owner, name, event)
    elif isinstance(owner, Collection):
        result = _method_of_list(run, owner, name, event)
    elif isinstance(owner, Constant) and isinstance(owner.value, str) and name in _TEXT_METHODS and not event.unpacks:
        return _method_of_text(owner.value, name, event)
    if result is None and isinstance(owner, (Mapping, Collection)) and name in _CHANGING:
        run.write(owner, "open", owner.open or f"it is changed by {name}()")
    return result


def _method_of_mapping(run: Run, owner: Mapping, name: str, event: Call) -> Value | None:
    if name == "update":
        changes = Mapping({}, None, event.named.open)
        for value in event.arguments:
            unpack(changes, value)
        for key, entry in (changes.entries | event.named.entries).items():
            run.write(owner.entries, key, entry)
        run.write(owner, "open", owner.open or changes.open)
        return Constant(None)
    if name in ("get", "pop", "setdefault") and event.arguments and isinstance(event.arguments[0], Constant):
        default = event.arguments[1] if len(event.arguments) > 1 else Constant(None)
        return _looked_up(run, owner, name, event.arguments[0].value, default)
    if name == "copy":
        return _shallow((owner,), {})
    if name in ("items", "keys", "values") and owner.complete:
        views: dict[str, list[Value]] = {
            "items": [Collection([Constant(key), value]) for key, value in owner.values().items()],
            "keys": [Constant(key) for key in owner.entries],
            "values": list(owner.values().values()),
        }
        return Collection(views[name])
    return None


def _looked_up(run: Run, owner: Mapping, name: str, key: object, default: Value) -> Value:
    entry = owner.entries.get(key)
    if entry is None:
        value: Value = choice(default, Unknown(owner.open)) if owner.open else default
        if name == "setdefault":
            run.write(owner.entries, key, Entry(value))
        return value
    if name == "pop":
        run.write(owner.entries, key, ABSENT)
    return entry.value


def _method_of_list(run: Run, owner: Collection, name: str, event: Call) -> Value | None:
    only = event.arguments[0] if len(event.arguments) == 1 else None
    added: list[Value] | None = None
    if name in ("append", "add") and only is not None:
        added = [only]
    elif name == "extend" and only is not None:
        added = element_values(only)
    elif name == "copy":
        return _shallow((owner,), {})
    if added is None or len(owner.items) > MAX_ITEMS:
        return None
    run.write(owner, "items", [*owner.items, *added])
    if run.repeats:
        run.write(owner, "open", owner.open or "it grows in a loop")
    return Constant(None)


def _is_plain_field(field: tuple[str, str | None, str | None, str | None]) -> bool:
    """Whether a part of a format names a value and neither an attribute nor a large width."""
    _, name, spec, _ = field
    plain_name = not name or name.isidentifier() or name.isdecimal()
    return plain_name and not (spec and (len(spec) > 3 or "{" in spec))


def _method_of_text(text: str, name: str, event: Call) -> Value | None:
    try:
        if name == "format" and not all(map(_is_plain_field, Formatter().parse(text))):
            return None
        arguments = [plain(value) for value in event.arguments]
        result = getattr(text, name)(*arguments, **{key: plain(value) for key, value in event.keywords.items()})
    except _FAILURES:
        return None
    return from_plain(result) if not isinstance(result, str) or len(result) <= _LONGEST_TEXT else None
