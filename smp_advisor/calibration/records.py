"""Measured steps in tables: a DataFrame, JSON lines, and the Hugging Face Trainer's ``trainer_state.json``."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, get_args

from smp_advisor.calibration.log import Log, MemoryClass, Sample, Unit
from smp_advisor.calibration.text import formats_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["read_frame", "read_json_lines", "read_records", "read_trainer_state"]

_MAX_RECORDS = 200_000


def read_records(records: Iterable[Mapping[str, Any]], title: str) -> Log:
    """Steps of rows with named values. The names are those of ``[columns]`` in ``data/formats.toml``."""
    rows = [row for _, row in zip(range(_MAX_RECORDS), records, strict=False)]
    names: dict[str, list[str]] = formats_table()["columns"]
    present = {key for row in rows for key in row}
    column = {field: name for field, options in names.items() for name in options[::-1] if name in present}
    field = next((name for name in _TIMES if name in column), None)
    steps, peaks = column.get("step"), dict[MemoryClass, float]()
    samples = []
    for row in rows:
        if field is not None and (value := _number(row.get(column[field]))) is not None:
            step = _number(row.get(steps)) if steps else None
            samples.append(
                Sample(None if step is None else int(step), value / (1000 if field == "milliseconds" else 1))
            )
        for kind in get_args(MemoryClass):
            if kind in column and (peak := _number(row.get(column[kind]))):
                peaks[kind] = max(peaks.get(kind, 0.0), peak)
    unit: Unit = "seconds" if field in (None, "milliseconds") else _UNITS[field]
    note = () if field is None else (f"Step times are from {column[field]!r}, read as {_WORDS[field]}: inferred.",)
    return Log(title=title, unit=unit, samples=tuple(samples), peak_gib=peaks, notes=note)


_WORDS = {
    "seconds": "seconds per step",
    "milliseconds": "milliseconds per step",
    "tokens_per_second_per_gpu": "tokens per second per GPU",
    "tokens_per_second": "tokens per second of the cluster",
    "samples_per_second": "samples per second of the cluster",
    "steps_per_second": "steps per second",
}
_TIMES = tuple(_WORDS)
_UNITS: dict[str, Unit] = {unit: unit for unit in get_args(Unit)}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        try:
            value = float(value)  # type: ignore[arg-type]  # NumPy's numbers, and numbers as text
        except (TypeError, ValueError):
            return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def read_frame(frame: Any) -> Log:
    """Steps of a pandas DataFrame, one row per step or per logged interval."""
    return read_records((dict(row) for row in frame.to_dict("records")), "DataFrame")


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
    """Seconds per step of a run of the Hugging Face Trainer (transformers, trainer_callback.py, `TrainerState`).

    Its history has no times of steps, only the run's (`speed_metrics` of trainer_utils.py): `train_runtime`, from which
    the runtimes of evaluations are subtracted.
    """
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
    return Log(title=title, unit="run_seconds", samples=(sample,), notes=tuple(notes))
