"""Amounts as people write them: ``7 billion``, ``4k``, ``$500``, ``48h``, ``2 weeks``, ``24 GiB``."""

from __future__ import annotations

import re
from typing import Any

from smp_advisor.core.files import data_file

_NUMBER = re.compile(
    r"\s*([+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d[\d_]*(?:\.\d*)?|\.\d+))(e[+-]?\d{1,2}(?![a-z]))?([^\d]*)",
    re.IGNORECASE | re.ASCII,
)
_POWERS = {1: "k thousand", 2: "m mn mio million millions", 3: "b g bn billion billions", 4: "t tn trillion trillions"}
_SCALES = {word: power for power, words in _POWERS.items() for word in words.split()}
_UNITS: dict[str, dict[str, Any]] = data_file("arguments", "units")
_GIB = {"g": 1, "gb": 1, "gib": 1, "m": 1 / 1024, "mb": 1 / 1024, "mib": 1 / 1024, "t": 1024, "tb": 1024, "tib": 1024}
DAYS_OF = {"hours": 1 / 24, "hour": 1 / 24, "weeks": 7.0, "week": 7.0, "months": 30.0, "minutes": 1 / 1440}
"""Days of a unit that a wrong name of a duration has."""


def digits_as_number(value: Any) -> Any:
    """Return the number in a text of digits, as hyperparameters and options have it; anything else as it is."""
    of_64_bits = isinstance(value, str) and value.isdecimal() and len(value) <= 18
    return int(value) if of_64_bits else value


def number_in(text: str, unit: str = "", *, binary: bool = False) -> float | None:
    """Read the number in a text; None if there is none.

    Parameters
    ----------
    text
        ``300B``, ``3e11``, ``300_000_000``, ``2,048``, ``7 billion``; with a unit also ``$500``, ``48h``, ``24 GiB``.
    unit
        That of the result: ``days``, ``seconds``, ``GiB``, ``USD``, ``tokens``, ``samples``, ``parameters``.
    binary
        Whether ``4k`` is 4,096, as in lengths and batches.
    """
    match = _NUMBER.fullmatch(text.replace("$", "", 1) if unit == "USD" and text.strip().startswith("$") else text)
    if not match:
        return None
    digits, exponent, tail = match.groups()
    number = float(re.sub("[_,]", "", digits) + (exponent or ""))
    words = [word for word in re.split(r"[\s-]+", tail.lower()) if word]
    if words and words[-1] in _UNITS["nouns"].get(unit, ()):
        words.pop()
    if not words:
        return number
    if len(words) > 1:
        return None
    if unit in ("days", "seconds"):
        seconds = _UNITS["seconds"].get(words[0])
        return None if seconds is None else number * seconds / (86_400 if unit == "days" else 1)
    if unit == "GiB":
        return None if words[0] not in _GIB else number * _GIB[words[0]]
    power = _SCALES.get(words[0])
    if power is None:
        return None
    exact, decimal = number * float(1024**power), number * float(1000**power)
    return exact if binary and exact.is_integer() else decimal
