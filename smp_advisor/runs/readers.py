"""Measured steps from logs and tables."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args

from smp_advisor.files import data_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Unit = Literal[
    "seconds", "samples_per_second", "tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second", "run_seconds"
]
"""Unit of samples. ``run_seconds``: seconds per step of the entire run, with start-up, saves and evaluation."""

MemoryClass = Literal["allocated", "reserved", "total"]


@dataclass(frozen=True)
class Sample:
    """One measured value."""

    step: int | None
    """Number of the optimizer step; None if the log has none."""
    value: float


@dataclass(frozen=True, kw_only=True)
class Log:
    """Values that a reader found."""

    title: str
    """Format: "Megatron-LM"."""
    unit: Unit = "seconds"
    samples: tuple[Sample, ...] = ()
    peak_gib: Mapping[MemoryClass, float] = field(default_factory=dict)
    """Highest peak of the log by class, GiB."""
    out_of_memory: bool = False
    global_batch_size: int | None = None
    """Samples per step, if the log states them."""
    work: Mapping[str, float] = field(default_factory=dict)
    """Tokens, samples and tokens per GPU of a step, which follow from rates next to the step times."""
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a time nor a fact about memory."""
        return not (self.samples or self.peak_gib or self.out_of_memory)


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
def _formats() -> tuple[_Format, ...]:
    entries: list[dict[str, Any]] = data_file("runs", "formats")["format"]
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


def read_text(text: str) -> Log:
    """Steps and memory of a log. Empty if no format matches."""
    lines = [_COLORS.sub("", line[:_MAX_LINE]) for line in text.splitlines()]
    for entry in _formats():
        log = _read(entry, lines)
        if log.samples:
            return log
    peaks = max((_peaks(entry, lines) for entry in _formats()), key=len)
    return Log(title="log without measured steps", peak_gib=peaks)


def _read(entry: _Format, lines: list[str]) -> Log:
    rows: list[dict[str, float]] = []
    elapsed: list[tuple[int, float]] = []
    batches: set[int] = set()
    for line in lines:
        match = entry.step.search(line)
        if match is None:
            continue
        groups = {name: value for name, value in match.groupdict().items() if value}
        if entry.batch is not None and (batch := entry.batch.search(line)):
            groups["batch"] = batch["batch"]
        if "batch" in groups:
            batches.add(int(groups.pop("batch")))
        if "elapsed" in groups:
            *larger, clock = (int(part or 0) for part in groups["elapsed"].split(":"))
            for place, part in enumerate(reversed(larger), start=1):
                clock += 60**place * part
            elapsed.append((int(groups["step"]), clock))
        else:
            rows.append({name: number for name, text in groups.items() if (number := _number(text)) is not None})
        if len(rows) >= _MAX_SAMPLES:
            break
    log = _log(entry.title, rows)
    samples = tuple(_differences(elapsed)) if elapsed else log.samples
    return replace(
        log,
        samples=samples,
        peak_gib=_peaks(entry, lines) if samples else {},
        global_batch_size=batches.pop() if len(batches) == 1 else None,
        notes=(*log.notes, *(("The global batch changes during the run.",) if len(batches) > 1 else ())),
    )


_TIMES = {
    "seconds": "seconds per step",
    "milliseconds": "milliseconds per step",
    "run_steps_per_second": "steps per second of the entire run",
    "tokens_per_second_per_gpu": "tokens per second per GPU",
    "tokens_per_second": "tokens per second of the cluster",
    "samples_per_second": "samples per second of the cluster",
    "steps_per_second": "steps per second",
}
"""Fields with the time of a step, in the order of preference, and their words."""
_RATES = {
    "tokens_per_second": "tokens",
    "samples_per_second": "samples",
    "tokens_per_second_per_gpu": "tokens per GPU",
}
_LEAST_RATE = 0.01
"""Steps per second below which three printed decimals are too few for the batch."""


def _log(title: str, rows: Iterable[Mapping[str, float]]) -> Log:
    """Measured steps of rows by field: of `_TIMES`, the first that any row has."""
    rows = list(rows)
    field = next((name for name in _TIMES if any(name in row for row in rows)), "seconds")
    entire = field == "run_steps_per_second"
    work: dict[str, list[float]] = {}
    samples = []
    for row in rows:
        if not (value := row.get(field)):
            continue
        rate = field.endswith("steps_per_second")
        seconds = {"seconds": value, "milliseconds": value / 1000}.get(field, 1 / value if rate else 0.0)
        for name, of in _RATES.items():
            if (product := seconds * row.get(name, 0.0)) and not (rate and value < _LEAST_RATE):
                work.setdefault(of, []).append(product)
        step = row.get("step")
        timed = entire or (seconds and not rate)
        samples.append(Sample(None if step is None else int(step), seconds if timed else value))
    return Log(
        title=title,
        unit="run_seconds" if entire else next((unit for unit in get_args(Unit) if unit == field), "seconds"),
        samples=tuple(samples),
        work={of: median(values) for of, values in work.items()},
        notes=(ENTIRE_RUN,) if entire else (),
    )


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


def read_records(records: Iterable[Mapping[str, Any]], title: str) -> Log:
    """Steps of rows with named values. The names are those of ``[columns]`` in ``data/formats.toml``."""
    rows = [row for _, row in zip(range(_MAX_SAMPLES), records, strict=False)]
    names: dict[str, list[str]] = data_file("runs", "formats")["columns"]
    present = {key for row in rows for key in row}
    column = {field: name for field, options in names.items() for name in options[::-1] if name in present}
    fields = [
        {field: value for field, name in column.items() if (value := _number(row.get(name))) is not None}
        for row in rows
    ]
    log = _log(title, fields)
    peaks = {kind: max((row.get(kind, 0.0) for row in fields), default=0.0) for kind in get_args(MemoryClass)}
    time = next((field for field in _TIMES if field in column), None)
    note = () if time is None else (f"Step times are from {column[time]!r}, read as {_TIMES[time]}: inferred.",)
    return replace(log, peak_gib={kind: peak for kind, peak in peaks.items() if peak}, notes=note)


def _number(value: object) -> float | None:
    """A measured number, 0 or more: of Python, of NumPy, or as text."""
    if isinstance(value, str):
        value = value.replace(",", "")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < 1e15 else None


def read_json_lines(text: str) -> Log:
    """Steps of JSON objects, one per line."""
    rows = []
    for line in text.splitlines():
        start = line.find("{")
        if start < 0:
            continue
        try:
            value = json.loads(line[start:])
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            rows.append(value)
    return read_records(rows, "JSON lines")


def read_trainer_state(state: Mapping[str, Any]) -> Log:
    """Seconds per step of Hugging Face's Trainer (`TrainerState`): its `train_runtime` less those of evaluations."""
    history = [entry for entry in state.get("log_history", ()) if isinstance(entry, dict)]
    runtime = next(
        (_number(entry.get("train_runtime")) for entry in reversed(history) if "train_runtime" in entry), None
    )
    steps = _number(state.get("global_step"))
    title = "Hugging Face Trainer (trainer_state.json)"
    if not runtime or not steps:
        return Log(title=title)
    evaluation = math.fsum(_number(entry.get("eval_runtime")) or 0.0 for entry in history)
    notes = ["The file has only the time of the run, including start-up, data loading and saves."]
    if 0 < evaluation < runtime:
        notes.append(f"{evaluation:,.0f} s of evaluation are subtracted.")
    else:
        evaluation = 0.0
    sample = Sample(int(steps), (runtime - evaluation) / steps)
    rates = {rate: _number(entry.get(f"train_{rate}")) or 0.0 for entry in history for rate in _RATES}
    work = _log(title, [{**rates, "run_steps_per_second": steps / runtime}]).work
    return Log(title=title, unit="run_seconds", samples=(sample,), work=work, notes=tuple(notes))
