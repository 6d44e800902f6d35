"""Keys and values in lines of training logs: step, seconds, rates, batch and loss, whatever program printed them."""

from __future__ import annotations

import math
import re

from smp_advisor.core.files import data_file

_FORMATS = data_file("runs", "formats")


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern of ``formats.toml`` with its parts filled in."""
    for part in ("amount", "separator", "number"):
        text = text.replace(f"<{part}>", _FORMATS["keys"][part])
    return re.compile(text, re.IGNORECASE)


_KEYS = {name: _pattern(text) for name, text in _FORMATS["keys"].items()}
_PROOFS = {name: _pattern(text) for name, text in _FORMATS["proofs"].items()}
_RATE = {
    name: (
        _pattern(rf"(?<![A-Za-z])(?:{keys})(?![\w/])<separator><amount>"),
        _pattern(rf"(?<![\w.,])(?P<value><number>)\s?(?P<unit>K|M)?\s?(?:{keys})(?![\w/'\":=])"),
    )
    for name, keys in _FORMATS["rates"].items()
}
_FACTORS = {"ms": 1e-3, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def number(value: object) -> float | None:
    """Return a measured number, 0 or more: of Python, of NumPy, or as text."""
    if isinstance(value, str):
        value = value.replace(",", "")
    try:
        amount = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return amount if 0 <= amount < 1e15 else None


def seconds_of(clock: str) -> float:
    """Return seconds of a duration: ``1:02:03``, ``02:03``, ``15s``, or a number."""
    total = 0.0
    for part in clock.strip().removesuffix("s").split(":"):
        total = 60 * total + (number(part) or 0.0)
    return total


def step_in(line: str) -> float | None:
    """Return the number of the training step in a line."""
    match = _KEYS["step"].search(line)
    if match is None or _KEYS["elsewhere"].search(line, 0, match.start()):
        return None
    return number(next(filter(None, match.groups()), ""))


def proofs_in(line: str) -> dict[str, float]:
    """Return figures from which the work of a step follows."""
    matches = ((name, pattern.search(line)) for name, pattern in _PROOFS.items())
    return {name: value for name, match in matches if match and (value := number(match[1])) is not None}


def measures_in(line: str) -> dict[str, float]:
    """Return seconds per step and rates of a line."""
    row: dict[str, float] = {}
    for pattern in (_KEYS["time"], _KEYS["other_time"]):
        match = pattern.search(line)
        if match and (value := number(match["value"])):
            written_unit = "ms" if match["key"].lower().startswith("ms") else (match["given"] or "").lower()
            unit, factor = (match["unit"] or "").lower(), 1.0
            factor *= _FACTORS["ms"] if "ms" in (written_unit, unit) else 1.0
            row["seconds"] = value * factor * (1e3 if unit == "k" else 1.0)
            break
    if match := _KEYS["elapsed"].search(line):
        row["elapsed"] = seconds_of(match["clock"]) * (_FACTORS["ms"] if match["unit"] == "ms" else 1.0)
    for name, patterns in _RATE.items():
        for pattern in patterns:
            match = pattern.search(line)
            if match and (value := number(match["value"])):
                row[name] = value * _FACTORS.get((match["unit"] or "").lower(), 1.0)
                break
    if not row and len(bare := _KEYS["bare"].findall(line)) == 1 and (value := number(bare[0])):
        row["seconds"] = value / 1e3
    return row


def waits_in(line: str) -> float | None:
    """Return seconds for which a step waited for data."""
    match = _KEYS["wait"].search(line)
    return None if match is None else (number(match["value"]) or 0.0) * (1e-3 if match["unit"] == "ms" else 1.0)


def loss_in(line: str, *, has_step: bool) -> float | None:
    """Return the training loss of a line; nan, too, if it prints 0 next to a gradient that is not a number."""
    for match in _KEYS["loss"].finditer(line):
        if not (match["sign"] or has_step) or _KEYS["other_loss"].search(
            line, max(match.start() - 16, 0), match.start()
        ):
            continue
        if _KEYS["evaluation"].search(line, 0, match.start()):
            continue
        value = float(match["value"].replace(",", ""))
        return math.nan if value == 0 and _KEYS["no_gradient"].search(line) else value
    return None
