"""Values as plain data for JSON and back, by the types of their fields."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from smp_advisor.errors import StorageError
from smp_advisor.libraries.plan import Plan
from smp_advisor.storage.advice_parts import advice_as_plain, advice_from_plain
from smp_advisor.storage.hints import ADVICE, members, types_of
from smp_advisor.storage.kinds import PLAN, field_names, kind_of, required_fields
from smp_advisor.storage.numbers import number_of, stored_number

__all__ = ["TYPE", "from_plain", "plain"]

TYPE = "type"
"""Key of an object with the name of its kind."""


def plain(value: Any) -> Any:
    """A value as dictionaries, lists, texts, numbers, booleans and None.

    Raises
    ------
    StorageError
        It has a part that cannot be stored, such as an object of the user's in a request.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return stored_number(value)
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, frozenset):
        return sorted(plain(part) for part in value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    kind: type = type(value)
    name = PLAN if isinstance(value, Plan) else kind.__name__
    if kind_of(name, getattr(value, "library", None)) is kind:
        fields = {field: getattr(value, field) for field in field_names(kind)}
        own = advice_as_plain(fields) if name == ADVICE else {}
        return {TYPE: name} | {field: plain(part) for field, part in (fields | own).items()}
    raise StorageError(f"A {name} cannot be stored: a model, job, cluster, plan, estimate or advice can.")


def from_plain(data: Any, hint: Any = Any, place: str = "") -> Any:
    """The inverse of `plain` for a value of a type.

    Parameters
    ----------
    place
        Path of the value in the file, for error messages.

    Raises
    ------
    StorageError
        The data has no value of this type. The sentence has its place.
    """
    if hint is Any:
        return _untyped(data, place)
    for member in members(hint):
        restored = _member(data, member, place)
        if restored is not _NOT:
            return restored
    raise StorageError(f"The stored value {place or 'at the top'} is not valid: {data!r:.60}.")


_NOT: Any = object()
"""No value of a type."""


def _member(data: Any, hint: Any, place: str) -> Any:
    """The value as one member of a union, or `_NOT`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (bool, str):
        return data if type(data) is hint else _NOT
    if hint is int:
        return data if type(data) is int else _NOT
    if hint is float:
        number = None if isinstance(data, bool) else number_of(data)
        return _NOT if number is None else number
    if hint in (None, types.NoneType):
        return None if data is None else _NOT
    if origin is Literal:
        return next((value for value in arguments if value == data and type(value) is type(data)), _NOT)
    if origin is tuple:
        return _entries(data, arguments, place)
    if origin is frozenset:
        return frozenset(_entries(data, (*arguments, ...), place)) if isinstance(data, list) else _NOT
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _table(data, place) if isinstance(data, dict) and TYPE not in data else _NOT
    if isinstance(data, dict) and data.get(TYPE) in (hint.__name__, PLAN):
        value = _object(data, place)
        return value if isinstance(value, hint) else _NOT
    return _NOT


def _entries(data: Any, arguments: tuple[Any, ...], place: str) -> Any:
    if not isinstance(data, list):
        return _NOT
    if arguments[-1] is not ... and len(arguments) != len(data):
        return _NOT
    hints = arguments if arguments[-1] is not ... else (arguments[0],) * len(data)
    return tuple(
        from_plain(part, hint, f"{place}[{index}]") for index, (part, hint) in enumerate(zip(data, hints, strict=True))
    )


def _table(data: dict[str, Any], place: str) -> dict[str, Any]:
    return {name: _untyped(part, f"{place}.{name}") for name, part in data.items()}


def _untyped(data: Any, place: str) -> Any:
    """A value without a declared type, as its data shows it."""
    if isinstance(data, list):
        return tuple(_untyped(part, f"{place}[{index}]") for index, part in enumerate(data))
    if not isinstance(data, dict):
        return data
    return _object(data, place) if TYPE in data else _table(data, place)


def _object(data: dict[str, Any], place: str) -> Any:
    name = data[TYPE]
    values = {key: part for key, part in data.items() if key != TYPE}
    kind = kind_of(name, data.get("library")) if isinstance(name, str) else None
    if kind is None:
        raise StorageError(f"The stored value {place or 'at the top'} has the unknown type {name!r:.60}.")
    hints = types_of(kind)
    unknown, missing = values.keys() - hints.keys(), required_fields(kind) - values.keys()
    if unknown or missing:
        problem = "has the unknown field" if unknown else "lacks the field"
        raise StorageError(f"The stored {name} {place} {problem} {min(unknown or missing)!r:.60}.")
    fields = {key: from_plain(part, hints[key], f"{place}.{key}".lstrip(".")) for key, part in values.items()}
    if name == ADVICE:
        fields |= advice_from_plain(fields)
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise StorageError(f"The stored {name} {place} is not valid: {error}") from None
