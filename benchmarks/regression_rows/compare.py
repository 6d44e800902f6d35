"""Results next to the recorded ones: the same, different as intended, or different."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .requests import digest

__all__ = ["Comparison", "Intended", "compare", "intended"]

_INTENDED = Path(__file__).parent / "data" / "intended.toml"
_TOLERANCE = 1e-8
"""Relative, of a recorded figure: nine digits are recorded."""


@dataclass(frozen=True, kw_only=True)
class Intended:
    """A difference that a change was made for."""

    reason: str
    results: dict[str, str]
    """Name of a request -> digest of its new result."""


@dataclass(kw_only=True)
class Comparison:
    """How many results are the same; the names of the others."""

    same: int = 0
    intended: dict[str, str] = field(default_factory=dict)
    """Name -> reason."""
    unused: list[str] = field(default_factory=list)
    """Listed as different, and the same as recorded."""
    different: dict[str, list[str]] = field(default_factory=dict)
    """Name -> the fields that differ, each with the recorded and the present value."""


def intended(kind: str) -> list[Intended]:
    """The listed differences of ``advice`` or ``plan`` results."""
    entries = tomllib.loads(_INTENDED.read_text("utf-8")).get("difference", [])
    return [Intended(reason=entry["reason"], results=entry.get(kind, {})) for entry in entries]


def compare(recorded: dict[str, dict[str, Any]], present: dict[str, dict[str, Any]], kind: str) -> Comparison:
    """Compare the present results with the recorded ones of the same requests."""
    comparison = Comparison()
    reasons = {name: (entry.reason, new) for entry in intended(kind) for name, new in entry.results.items()}
    for name, result in present.items():
        differing = _differing(recorded[name], result)
        reason, new = reasons.get(name, ("", ""))
        if not differing:
            comparison.same += 1
            if reason:
                comparison.unused.append(name)
        elif reason and new == digest(result):
            comparison.intended[name] = reason
        else:
            comparison.different[name] = [*differing, f'"{name}" = "{digest(result)}"']
    return comparison


def _differing(recorded: dict[str, Any], present: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {recorded.get(name, 'none')} -> {present.get(name, 'none')}"
        for name in {**recorded, **present}
        if not _equal(recorded.get(name), present.get(name))
    ]


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
    return one == other
