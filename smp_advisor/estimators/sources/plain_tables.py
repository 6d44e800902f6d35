"""Tables of a configuration as plain data, with an empty table for anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.reading.data import plain
from smp_advisor.reading.values import Constant, Mapping

if TYPE_CHECKING:
    from smp_advisor.reading.values import Value

__all__ = ["count", "plain_of", "section"]


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
