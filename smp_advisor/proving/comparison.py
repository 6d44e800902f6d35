"""Comparison of the records of two runs: each difference is a sentence with the line of the adapted script."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Difference",
    "Record",
    "compare_losses",
    "compare_modes",
    "compare_prints",
    "compare_saves",
    "is_sum_over_batch",
]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|\bnan\b|\binf\b)")
_DURATION = re.compile(
    r"(?i)\b(?:time|elapsed|took)\b[^\d]{0,20}[\d.:]+(?:\s*\(\s*[\d.]+\))?|\bdata\s+[\d.]+\s*\(\s*[\d.]+\)"
    r"|[\d.]+ ?(?:ms|s|secs?|seconds|it/s|tok/s)\b"
)
"""Durations in a printed line; the second form is that of the meters in PyTorch's ImageNet example."""
_RELATIVE = 2e-3
"""Largest relative difference of equal figures: another order of summation, and the rounding of printed digits."""
_STATES = ("state", "param_groups")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Something that the adapted script does differently."""

    what: str
    """One sentence."""
    line: int = 0
    """Line of the adapted script; 0 if it has none."""

    def __str__(self) -> str:
        return f"Line {self.line} of the adapted script: {self.what}" if self.line else self.what


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Behavior of one process."""

    losses: list[tuple[float, int]]
    modes: list[tuple[bool, bool, int]]
    saves: list[dict[str, Any]]
    notes: list[str]
    printed: list[str]
    error: str
    stopped: bool = False


def _close(first: float, second: float) -> bool:
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return math.isclose(first, second, rel_tol=_RELATIVE, abs_tol=2e-4)


def compare_losses(original: Record, adapted: list[Record]) -> Difference | None:
    """First loss that differs; with several processes, their mean is the loss of the batch."""
    series = [record.losses for record in adapted]
    for step, (loss, _) in enumerate(original.losses):
        values = [losses[step] for losses in series if step < len(losses)]
        if len(values) < len(series):
            return Difference(
                what=f"The original has {len(original.losses)} backward passes, and this has {len(series[0])}.",
                line=series[0][-1][1] if series[0] else 0,
            )
        mean = sum(value for value, _ in values) / len(values)
        if not _close(loss, mean):
            what = f"Loss {step + 1} is {mean:.5g}, and {loss:.5g} in the original."
            return Difference(what=what, line=values[0][1])
    if series and len(series[0]) > len(original.losses):
        return Difference(what=f"There are {len(series[0])} backward passes, and {len(original.losses)} originally.")
    return None


def is_sum_over_batch(original: Record, divided: list[Record]) -> bool:
    """Whether the first loss of each process is its part of a sum, so that the mean over processes is smaller."""
    if not original.losses or not all(record.losses for record in divided) or len(divided) < 2:
        return False
    parts = sum(record.losses[0][0] for record in divided)
    return original.losses[0][0] != 0 and _close(parts, original.losses[0][0])


def compare_modes(original: Record, adapted: Record) -> Difference | None:
    """First change of a model's mode that differs."""
    for first, second in zip(original.modes, adapted.modes, strict=False):
        if first[:2] != tuple(second[:2]):
            modes = [_mode(training=t, gradients=g) for t, g, _ in (first, second)]
            return Difference(what=f"The model runs in {modes[1]}, and in {modes[0]} in the original.", line=second[2])
    if len(original.modes) != len(adapted.modes):
        return Difference(
            what=f"The model changes its mode {len(adapted.modes)} times, and {len(original.modes)} times originally.",
            line=adapted.modes[-1][2] if adapted.modes else 0,
        )
    return None


def _mode(*, training: bool, gradients: bool) -> str:
    return f"{'train' if training else 'eval'} mode {'with' if gradients else 'without'} gradients"


def compare_saves(original: Record, adapted: Record, *, renamed: bool = False) -> list[Difference]:
    """Saves that are missing or have other keys.

    `renamed` allows a checkpoint of a library, which stores the states of the model and the optimizer under names of
    its own, next to the other entries.
    """
    differences = []
    if len(original.saves) != len(adapted.saves):
        what = f"{len(adapted.saves)} files are saved, and {len(original.saves)} originally."
        differences.append(Difference(what=what, line=adapted.saves[-1]["line"] if adapted.saves else 0))
    for first, second in zip(original.saves, adapted.saves, strict=False):
        before, after = _flat(first["keys"], renamed=renamed), _flat(second["keys"], renamed=renamed)
        missing, added = sorted(before - after), sorted(after - before)
        if missing or (added and not renamed):
            words = [f"lacks {', '.join(missing[:3])}"] if missing else []
            words += [f"has {', '.join(added[:3])} in addition"] if added else []
            what = f"The saved file {second['name']} {' and '.join(words)}."
            differences.append(Difference(what=what, line=second["line"]))
    return differences


def _flat(keys: Any, *, renamed: bool, prefix: str = "") -> set[str]:
    """Paths of keys; optimizer states by their two entries, because sharded ones are stored by name."""
    if not isinstance(keys, dict):
        return {prefix}
    if set(keys) == set(_STATES):
        return {f"{prefix}/optimizer" if not renamed else "optimizer"}
    if list(keys) == ["module"] and isinstance(keys["module"], list):
        return {f"{prefix}/{name}" for name in keys["module"]}
    paths: set[str] = set()
    tensors = bool(keys) and all(v in ("Tensor", "Parameter", "DTensor") for v in keys.values())
    for key, value in keys.items():
        if tensors and renamed:
            paths.add(f"model/{key}")
        else:
            paths |= _flat(value, renamed=renamed, prefix=f"{prefix}/{key}")
    return paths


def compare_prints(original: Record, again: Record, adapted: Record) -> list[Difference]:
    """Printed lines with other numbers; lines that differ between two original runs, such as times, do not count."""
    first, second = _meaningful(original.printed), _meaningful(adapted.printed)
    repeated = _meaningful(again.printed)
    differences = []
    if len(first) != len(second):
        what = f"{len(second)} lines are printed, and {len(first)} originally."
        differences.append(Difference(what=what))
    for number, (before, after) in enumerate(zip(first, second, strict=False)):
        stable = number < len(repeated) and repeated[number] == before
        if stable and not _same_line(before, after):
            differences.append(Difference(what=f"`{after[:100]}` is printed, and `{before[:100]}` in the original."))
    return differences[:5]


def _meaningful(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


def _same_line(first: str, second: str) -> bool:
    """Whether two lines have the same numbers; words may differ, because a wrapper changes the print of a model."""
    before, after = (_NUMBER.findall(_DURATION.sub("", line)) for line in (first, second))
    return len(before) == len(after) and all(_close(float(a), float(b)) for a, b in zip(before, after, strict=True))
