"""Tables of a configuration as plain data, with an empty table for anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.reading.data import plain
from smp_advisor.reading.values import Constant, Mapping

if TYPE_CHECKING:
    from smp_advisor.reading.values import Value

__all__ = ["count", "digits_as_number", "is_on", "plain_of", "section"]

_LONGEST_NUMBER = 40


def plain_of(table: Value) -> dict[str, Any]:
    """The known entries of a table as plain data."""
    if not isinstance(table, Mapping):
        return {}
    data: dict[str, Any] = {}
    for key, entry in table.entries.items():
        if isinstance(entry.value, Mapping):
            data[str(key)] = plain_of(entry.value)
        elif isinstance(entry.value, Constant):
            data[str(key)] = entry.value.value
        else:
            try:
                data[str(key)] = plain(entry.value)
            except LookupError:
                continue
    return data


def section(data: object, *names: str) -> dict[str, Any]:
    """The table at a path of names; empty if there is none."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def count(value: object) -> int | None:
    """A whole number of at least 1; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def is_on(value: object) -> bool:
    """Whether a flag is on; hyperparameters and environment variables are often text."""
    return str(value).strip().lower() in ("1", "true", "yes", "on")


def digits_as_number(value: Any) -> Any:
    """The number in a text of digits; anything else as it is."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_NUMBER else value
