"""Numbers in JSON, which has no infinity: ``"inf"``, ``"-inf"`` and ``"nan"`` stand for those."""

from __future__ import annotations

import math

__all__ = ["number_of", "stored_number"]

_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def stored_number(value: float) -> float | str:
    """The form of a number in a file."""
    return value if math.isfinite(value) else f"{value}"


def number_of(data: object) -> float | bool | None:
    """The number of its form in a file; None for anything else."""
    if isinstance(data, str):
        return _NUMBERS.get(data)
    return data if isinstance(data, bool | int | float) else None
