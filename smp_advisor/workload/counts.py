"""Counts as people write them: ``10B``, ``1.5b``, ``350 M``, ``10_000_000_000``."""

from __future__ import annotations

import re

from smp_advisor.arguments import require_whole, shown
from smp_advisor.arguments.amounts import number_in
from smp_advisor.core import MOST
from smp_advisor.errors import ModelError

_FORMS = "a positive number such as 10e9 or text such as '10B', '7 billion' or '350M'"
MAX_LAYERS = 10_000
_LARGEST_SIZE = 2**24
"""Of a size of a shape, far beyond any published model."""


def parse_count(count: float | str) -> int:
    """Read a number of parameters from a number or from text."""
    value: object = number_in(count, "parameters") if isinstance(count, str) else count
    # Compared before it is rounded: a whole number may have more digits than a float, and a float none.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 2 * MOST:
        raise ModelError(f"A parameter count must be {_FORMS}, not {shown(count)}.")
    if not 1 <= round(value) <= MOST:
        limits = f"between 1 and {format_count(MOST)}"
        raise ModelError(f"A parameter count must be {limits}: {_FORMS}, not {shown(count)}.")
    return round(value)


MIXTURE = re.compile(r"\s*\d+(\.\d+)?\s*(x|b-a)\s*\d+(\.\d+)?\s*b\s*", re.IGNORECASE)
"""Sizes of a mixture of experts, which are part of a name: ``8x7B``, ``30B-A3B``."""


def is_count(text: str) -> bool:
    """Return whether a text is meant as a count: it starts like a number, and is no size of a mixture of experts."""
    return (re.match(r"\s*[+-]?\.?\d", text) is not None and not MIXTURE.fullmatch(text)) or not text.strip()


def format_count(count: float) -> str:
    """Format a count with three digits and a unit."""
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        # 999.6 M rounds up into the next unit.
        if count >= 0.9995 * scale:
            digits = f"{count / scale:.3g}" if count < 999.5 * scale else f"{count / scale:,.0f}"
            return f"{digits} {unit}"
    return f"{count:.0f}"


def check_sizes(**sizes: object) -> None:
    """Refuse sizes of a shape that are not whole numbers from 1 to 16,777,216. None means not set."""
    for field, value in sizes.items():
        if value is not None:
            require_whole(field, value, ModelError, _LARGEST_SIZE)
