"""Python's own functions that work on plain data, as far as a cell that configures a job uses them."""

from __future__ import annotations

import json
import math
import posixpath
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.cells.expressions import element_values, truth
from smp_advisor.estimators.cells.state import MAX_ITEMS
from smp_advisor.estimators.values import Entry, Listing, Scalar, Table, Unknown, Value, clone, plain

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FUNCTIONS", "from_plain"]

Given = list[Value]
Named = dict[str, Value]


def _numbers(values: Given) -> list[Any] | None:
    known = [value.value for value in values if isinstance(value, Scalar)]
    return known if len(known) == len(values) else None


def _pure(function: Callable[..., Any]) -> Callable[[Given, Named], Value | None]:
    """A function of known scalars."""

    def apply(positional: Given, named: Named) -> Value | None:
        known = _numbers(positional)
        if known is None or named:
            return None
        try:
            return Scalar(function(*known))
        except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):
            return None

    return apply


def _over(function: Callable[..., Any]) -> Callable[[Given, Named], Value | None]:
    """A function of numbers, one by one or in a list."""

    def apply(positional: Given, named: Named) -> Value | None:
        items = element_values(positional[0]) if len(positional) == 1 else positional
        known = _numbers(items) if items is not None else None
        if known is None or named:
            return None
        try:
            return Scalar(function(known))
        except (TypeError, ValueError, ArithmeticError):
            return None

    return apply


def _length(positional: Given, _named: Named) -> Value | None:
    only = positional[0] if len(positional) == 1 else None
    if isinstance(only, Table) and not only.open:
        return Scalar(len(only.entries))
    if isinstance(only, Listing):
        return Scalar(len(only.items))
    return Scalar(len(only.value)) if isinstance(only, Scalar) and isinstance(only.value, str) else None


def _listed(positional: Given, _named: Named) -> Value | None:
    items = element_values(positional[0]) if positional else []
    return None if items is None else Listing(items)


def _range(positional: Given, _named: Named) -> Value | None:
    known = _numbers(positional)
    if known is None or not all(isinstance(number, int) for number in known) or not 1 <= len(known) <= 3:
        return None
    if len(known) == 3 and known[2] == 0:
        return None
    numbers = range(*known)
    return Listing([Scalar(number) for number in numbers]) if len(numbers) <= MAX_ITEMS else None


def _enumerate(positional: Given, _named: Named) -> Value | None:
    items = element_values(positional[0]) if len(positional) == 1 else None
    return None if items is None else Listing([Listing([Scalar(n), item]) for n, item in enumerate(items)])


def _zip(positional: Given, _named: Named) -> Value | None:
    columns = [element_values(value) for value in positional]
    known = [column for column in columns if column is not None]
    if len(known) < len(columns):
        return None
    return Listing([Listing(list(row)) for row in zip(*known, strict=False)])


def _copied(positional: Given, _named: Named) -> Value | None:
    return clone(positional[0], {}) if len(positional) == 1 else None


def _dumped(positional: Given, named: Named) -> Value | None:
    try:
        options = {key: plain(value) for key, value in named.items() if key in ("indent", "sort_keys")}
        return Scalar(json.dumps(plain(positional[0]), **options)) if positional else None
    except (LookupError, TypeError, ValueError):
        return None


def _loaded(positional: Given, _named: Named) -> Value | None:
    only = positional[0] if len(positional) == 1 else None
    if not isinstance(only, Scalar) or not isinstance(only.value, str) or len(only.value) > 100_000:
        return None
    try:
        return from_plain(json.loads(only.value))
    except (ValueError, RecursionError):
        return None


def from_plain(data: Any) -> Value:
    """Plain data as a value; what is not plain is not known."""
    if isinstance(data, dict):
        return Table({key: Entry(from_plain(value)) for key, value in data.items()})
    if isinstance(data, (list, tuple, set)):
        return Listing([from_plain(item) for item in data])
    if data is None or isinstance(data, (bool, int, float, str)):
        return Scalar(data)
    return Unknown(f"it is a {type(data).__name__}")


def _any(positional: Given, _named: Named) -> Value | None:
    return _truths(positional, any)


def _all(positional: Given, _named: Named) -> Value | None:
    return _truths(positional, all)


def _truths(positional: Given, of: Callable[..., bool]) -> Value | None:
    items = element_values(positional[0]) if len(positional) == 1 else None
    known = [truth(item) for item in items] if items is not None else [None]
    return None if None in known else Scalar(of(known))


FUNCTIONS: dict[str, Callable[[Given, Named], Value | None]] = {
    "int": _pure(int),
    "float": _pure(float),
    "str": _pure(str),
    "bool": _pure(bool),
    "abs": _pure(abs),
    "round": _pure(round),
    "min": _over(min),
    "max": _over(max),
    "sum": _over(sum),
    "math.prod": _over(math.prod),
    "math.ceil": _pure(math.ceil),
    "math.floor": _pure(math.floor),
    "math.gcd": _pure(math.gcd),
    "math.log2": _pure(math.log2),
    "os.path.join": _pure(posixpath.join),
    "len": _length,
    "list": _listed,
    "tuple": _listed,
    "range": _range,
    "enumerate": _enumerate,
    "zip": _zip,
    "any": _any,
    "all": _all,
    "copy.copy": _copied,
    "copy.deepcopy": _copied,
    "json.dumps": _dumped,
    "json.loads": _loaded,
}
