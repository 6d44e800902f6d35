"""Training logs as text, by the patterns of ``data/formats.toml``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, get_args

from smp_advisor.calibration.log import Log, MemoryClass, Sample, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ENTIRE_RUN", "formats_table", "read_text"]

_MAX_LINE = 1500
"""Characters of a line that are read. Lines of measured steps are far shorter."""
_MAX_SAMPLES = 200_000
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
ENTIRE_RUN = "The step time is that of the entire run, including start-up, data loading, saves and evaluation."
_LEAST_ELAPSED = 10
"""Fewest seconds between two readings of a progress bar, which shows full seconds."""


@dataclass(frozen=True)
class _Format:
    name: str
    title: str
    step: re.Pattern[str]
    batch: re.Pattern[str] | None
    memory: tuple[re.Pattern[str], ...]
    memory_bytes: int


@cache
def formats_table() -> dict[str, Any]:
    """The table of formats."""
    return tomllib.loads(resources.files("smp_advisor.calibration").joinpath("data/formats.toml").read_text("utf-8"))


@cache
def _formats() -> tuple[_Format, ...]:
    entries: list[dict[str, Any]] = formats_table()["format"]
    return tuple(
        _Format(
            name=entry["name"],
            title=entry["title"],
            step=re.compile(entry["step"]),
            batch=re.compile(entry["batch"]) if "batch" in entry else None,
            memory=tuple(re.compile(pattern) for pattern in entry.get("memory", ())),
            memory_bytes=int(entry.get("memory_bytes", 1)),
        )
        for entry in entries
    )


@cache
def _out_of_memory() -> re.Pattern[str]:
    patterns: list[str] = formats_table()["out_of_memory"]["patterns"]
    return re.compile("|".join(patterns))


def read_text(text: str) -> Log:
    """Steps and memory of a log. Empty if no format matches."""
    lines = [_COLORS.sub("", line[:_MAX_LINE]) for line in text.splitlines()]
    ran_out = any(_out_of_memory().search(line) for line in lines)
    for entry in _formats():
        log = _read(entry, lines)
        if log.samples:
            return replace(log, out_of_memory=ran_out)
    peaks = max((_peaks(entry, lines) for entry in _formats()), key=len)
    return Log(title="log without measured steps", peak_gib=peaks, out_of_memory=ran_out)


def _read(entry: _Format, lines: list[str]) -> Log:
    unit: Unit = "seconds"
    samples: list[Sample] = []
    elapsed: list[tuple[int, float]] = []
    batches: set[int] = set()
    for line in lines:
        match = entry.step.search(line)
        if match is None:
            continue
        groups = {name: value for name, value in match.groupdict().items() if value}
        step = int(groups.pop("step")) if "step" in groups else None
        if entry.batch is not None and (batch := entry.batch.search(line)):
            groups["batch"] = batch["batch"]
        if "batch" in groups:
            batches.add(int(groups.pop("batch")))
        if "elapsed" in groups and step is not None:
            elapsed.append((step, _clock(groups["elapsed"])))
        elif groups:
            name, value = next(iter(groups.items()))
            number = _number(value)
            if number is None:
                continue
            unit = _unit(name)
            scale = {"milliseconds": number / 1000, "run_steps_per_second": 1 / number}
            samples.append(Sample(step, scale.get(name, number)))
        if len(samples) >= _MAX_SAMPLES:
            break
    if elapsed:
        samples = list(_differences(elapsed))
    return Log(
        title=entry.title,
        unit=unit,
        samples=tuple(samples),
        peak_gib=_peaks(entry, lines) if samples else {},
        global_batch_size=batches.pop() if len(batches) == 1 else None,
        notes=(
            *(("The global batch changes during the run.",) if len(batches) > 1 else ()),
            *((ENTIRE_RUN,) if unit == "run_seconds" else ()),
        ),
    )


def _unit(name: str) -> Unit:
    if name == "run_steps_per_second":
        return "run_seconds"
    return next((unit for unit in get_args(Unit) if unit == name), "seconds")


def _peaks(entry: _Format, lines: Iterable[str]) -> dict[MemoryClass, float]:
    """Highest peaks by class, GiB."""
    peaks: dict[MemoryClass, float] = {}
    if not entry.memory:
        return peaks
    for line in lines:
        for pattern in entry.memory:
            for match in pattern.finditer(line):
                for name, value in match.groupdict().items():
                    number = _number(value)
                    if number:
                        key: MemoryClass = "allocated" if name == "allocated" else "reserved"
                        peaks[key] = max(peaks.get(key, 0.0), number * entry.memory_bytes / 2**30)
    return peaks


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < 1e15 else None


def _clock(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + (int(part) if part else 0)
    return seconds


def _differences(elapsed: list[tuple[int, float]]) -> Iterable[Sample]:
    """Seconds per step between readings of a progress bar. A restart begins with a new reading."""
    last_step, last_time = elapsed[0]
    for step, time in elapsed[1:]:
        if step < last_step or time < last_time:
            yield Sample(step, 0.0)  # a restart has no duration
            last_step, last_time = step, time
        elif step > last_step and time - last_time >= _LEAST_ELAPSED:
            yield Sample(step, (time - last_time) / (step - last_step))
            last_step, last_time = step, time
