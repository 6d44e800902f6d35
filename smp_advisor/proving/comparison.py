"""Comparison of the records of two runs: each difference is a sentence with the line of the adapted script."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.libraries.library import Library

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

    losses: list[tuple[float, int]] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    modes: list[tuple[bool, bool, int]] = field(default_factory=list)
    saves: list[dict[str, Any]] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    collectives: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    structure: dict[str, int] = field(default_factory=dict)
    hits: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    error: str = ""
    stopped: bool = False

    def loss_of(self, update: int) -> float:
        """Sum of the losses of the backward passes of an update."""
        start = self.updates[update - 1]["losses"] if update else 0
        return sum(value for value, _ in self.losses[start : self.updates[update]["losses"]])

    @property
    def accumulation(self) -> int:
        """Backward passes of an update."""
        return self.updates[0]["losses"] if self.updates else 1


def _close(first: float, second: float) -> bool:
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return math.isclose(first, second, rel_tol=_RELATIVE, abs_tol=2e-4)


def compare_updates(original: Record, adapted: list[Record]) -> list[Difference]:
    """First update whose loss, gradients or parameters differ; the mean loss of the processes is that of a batch."""
    if any(len(record.updates) != len(original.updates) for record in adapted):
        what = f"Updates: {len(adapted[0].updates)}, and {len(original.updates)} in the original."
        return [Difference(what=what, line=adapted[0].losses[-1][1] if adapted[0].losses else 0)]
    if apart := compare_replicas(adapted):
        return apart
    for number, first in enumerate(original.updates):
        parts = [record.updates[number] for record in adapted]
        loss, mean = original.loss_of(number), sum(record.loss_of(number) for record in adapted) / len(adapted)
        figures = [("loss", loss, mean, 2e-4)]
        for name in ("gradients", "parameters"):
            after = parts[0][name][0] + sum(part[name][1] for part in parts)
            figures.append((f"norm of the {name}", sum(first[name]), after, 1e-7))
        for name, before, after, absolute in figures:
            if math.isnan(before) and math.isnan(after):
                continue
            if not math.isclose(before, after, rel_tol=_RELATIVE if name == "loss" else 5e-3, abs_tol=absolute):
                power = 1 if name == "loss" else 0.5
                what = f"The {name} of update {number + 1} is {after**power if after > 0 else after:.5g}, and "
                what += f"{before**power if before > 0 else before:.5g} in the original."
                return [Difference(what=what, line=parts[0]["line"])]
    return []


def compare_replicas(adapted: list[Record]) -> list[Difference]:
    """First update after which processes that hold the same parameters have other values of them."""
    for number, parts in enumerate(zip(*(record.updates for record in adapted), strict=False)):
        for name in ("gradients", "parameters"):
            values = [part[name][0] for part in parts]
            if not all(math.isclose(value, values[0], rel_tol=1e-6, abs_tol=1e-9) for value in values):
                what = f"The {name} of the processes differ after update {number + 1}: they are not averaged."
                return [Difference(what=what, line=parts[0]["line"])]
    return []


def compare_processes(adapted: list[Record]) -> list[Difference]:
    """Collectives in another order, saves of several processes, and files that are loaded before they are complete."""
    first, differences = adapted[0], list[Difference]()
    for later in adapted[1:]:
        order = next(
            (n for n, pair in enumerate(zip(first.collectives, later.collectives, strict=False)) if len(set(pair)) > 1),
            None,
        )
        if order is not None:
            what = f"The processes call {first.collectives[order]} and {later.collectives[order]} at the same time."
            differences.append(Difference(what=what))
        if later.saves:
            what = "A process other than the first saves files too."
            differences.append(Difference(what=what, line=later.saves[0]["line"]))
        for mine, theirs in zip(first.loads, later.loads, strict=False):
            written = [save["after"] for save in first.saves if save["name"] == theirs["name"]]
            if any(theirs["after"] <= after <= mine["after"] for after in written):
                what = (
                    f"A process may load {theirs['name']} before another one has saved it: put a barrier between them."
                )
                differences.append(Difference(what=what, line=theirs["line"]))
                break
    return differences


def compare_settings(adapted: list[Record], plan: dict[str, Any], library: Library) -> list[Difference]:
    """Settings of the plan that the script does not have, and models that the library does not train."""
    record, differences = adapted[0], list[str]()
    structure, settings = record.structure, record.settings
    in_step = library.script == "smp_step"
    if library.divides_model and not in_step:
        if structure["sharded"] < structure["trained"]:
            count = structure["trained"] - structure["sharded"]
            differences.append(f"{count} of {structure['trained']} trained parameters are not sharded.")
        if structure["wrappers"]:
            differences.append("A model is wrapped with DistributedDataParallel next to its shards.")
    elif not library.divides_model and structure["replicated"] < structure["trained"]:
        count = structure["trained"] - structure["replicated"]
        differences.append(f"{count} of {structure['trained']} trained parameters are outside DistributedDataParallel.")
    if not in_step and structure["idle"]:
        differences.append("A model is wrapped whose parameters no optimizer updates.")
    if "shuffled shards" in record.notes and "several passes" in record.notes and "set_epoch" not in record.notes:
        differences.append("Every epoch has the same order: set_epoch is not called.")
    has: dict[str, Any] = {
        "batch_size": settings.get("batch_size"), "gradient_accumulation_steps": record.accumulation,
    }  # fmt: skip
    if not in_step:
        has["precision"] = settings.get("precision", "fp32")
        has["activation_checkpointing"] = bool(settings.get("activation_checkpointing"))
    for name, value in plan.items():
        if name in has and has[name] is not None and has[name] != value:
            differences.append(f"The plan has {name}={value!r}, and the script has {has[name]!r}.")
    return [Difference(what=what) for what in differences]


def is_sum_over_batch(original: Record, divided: list[Record]) -> bool:
    """Whether the first loss of each process is its part of a sum, so that the mean over processes is smaller."""
    if not original.losses or not all(record.losses for record in divided) or len(divided) < 2:
        return False
    parts = sum(record.losses[0][0] for record in divided)
    return original.losses[0][0] != 0 and _close(parts, original.losses[0][0])


def compare_modes(original: Record, adapted: Record) -> Difference | None:
    """First change of a model's mode that differs."""
    for first, second in zip(original.modes, adapted.modes, strict=False):
        if tuple(first[:2]) != tuple(second[:2]):
            modes = [
                f"{'train' if training else 'eval'} mode {'with' if gradients else 'without'} gradients"
                for training, gradients, _ in (first, second)
            ]
            return Difference(what=f"The model runs in {modes[1]}, and in {modes[0]} in the original.", line=second[2])
    if len(original.modes) != len(adapted.modes):
        return Difference(
            what=f"The model changes its mode {len(adapted.modes)} times, and {len(original.modes)} times originally.",
            line=adapted.modes[-1][2] if adapted.modes else 0,
        )
    return None


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
    for save in adapted.saves:
        if shard := save.get("shard"):
            what = f"The saved file {save['name']} has only the first process's part of {shard}."
            differences.append(Difference(what=what, line=save["line"]))
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


def compare_prints(original: Record, again: Record, adapted: Record, batch: int = 0) -> list[Difference]:
    """Printed lines with other numbers; lines that differ between two original runs, such as times, do not count."""
    records = (original, adapted, again)
    first, second, repeated = ([line.strip() for line in r.printed if line.strip()] for r in records)
    differences = []
    if len(first) != len(second):
        differences.append(Difference(what=f"{len(second)} lines are printed, and {len(first)} originally."))
    for number, (before, after) in enumerate(zip(first, second, strict=False)):
        stable = number < len(repeated) and repeated[number] == before
        if stable and not _same_line(before, after, batch):
            differences.append(Difference(what=f"`{after[:100]}` is printed, and `{before[:100]}` in the original."))
    return differences[:5]


def _same_line(first: str, second: str, batch: int) -> bool:
    """Whether two lines have the same numbers, or the batch of the plan; a wrapper changes words of a model's print."""
    lines = (map(float, _NUMBER.findall(_DURATION.sub("", line))) for line in (first, second))
    batches = (float(batch),) if "batch" in second.lower() else ()
    return all(_close(a, b) or b in batches for a, b in zip_longest(*lines, fillvalue=math.inf))
