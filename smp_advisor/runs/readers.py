"""Measured steps from logs and tables."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args

from smp_advisor.core.files import data_file, json_values
from smp_advisor.runs.keys import loss_in, measures_in, number, proofs_in, seconds_of, step_in, waits_in
from smp_advisor.runs.processes import literal_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Unit = Literal[
    "seconds",
    "samples_per_second",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "steps_per_second",
    "run_seconds",
    "batch_seconds",
]
"""Unit of samples. ``run_seconds``: seconds per step of the entire run, with start-up, saves and evaluation.
``batch_seconds``: of a batch of the loader, of which a step has as many as the plan accumulates."""

MemoryClass = Literal["allocated", "reserved", "total"]
Row = dict[str, float]


@dataclass(frozen=True)
class Sample:
    """One measured value."""

    step: int | None
    """Number of the optimizer step; None if the log has none."""
    value: float
    readings: tuple[tuple[float, float], ...] = ()
    """Readings of a clock with full seconds, from which it follows: (step, seconds)."""


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
    """Samples, tokens, tokens per GPU and model TFLOP per GPU of a step, which follow from figures next to the step
    times, and the length of a sequence."""
    error: float = 0.0
    """One standard deviation of the logarithm of the values by their printed digits."""
    evidence: Mapping[str, int] = field(default_factory=dict)
    """Lines that explain the step time, by cause (``evidence.toml``), with their number."""
    data_seconds: float | None = None
    """Median wait for data in a step, if the log prints it."""
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
"""Fewest seconds between two readings of a clock that shows full seconds."""
_JSON, _GENERIC = "JSON lines", "steps with named figures"
_AFTER_STEP = 60
"""Lines after that of a step in which its figures can stand, one per line."""
_NOT_TRAINING = re.compile(
    r"\b(?:eval\w*|valid\w*|val|test\w*|predict\w*|load\w*|download\w*|fetch\w*|map|filter|tokeniz\w*|generat\w*|"
    r"sanity|pack\w*|group\w*|sav\w*|shards?|check\w*|convert\w*|upload\w*|extract\w*|running|casting|truncat\w*)\b",
    re.IGNORECASE,
)
"""In the description of a bar that is not one of training."""
_OF_BATCHES = re.compile(r"^\s*epoch\b", re.IGNORECASE)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{3})")


@dataclass(frozen=True)
class _Format:
    name: str
    title: str
    step: re.Pattern[str]
    literal: str
    memory: tuple[re.Pattern[str], ...]
    memory_bytes: int
    note: str


@cache
def _formats() -> tuple[_Format, ...]:
    entries: list[dict[str, Any]] = data_file("runs", "formats")["format"]
    return tuple(
        _Format(
            name=entry["name"],
            title=entry["title"],
            step=re.compile(entry["step"]),
            literal=literal_of(entry["step"]),
            memory=tuple(re.compile(pattern) for pattern in entry.get("memory", ())),
            memory_bytes=int(entry.get("memory_bytes", 1)),
            note=entry.get("note", ""),
        )
        for entry in entries
    )


@cache
def _evidence() -> tuple[tuple[str, re.Pattern[str]], ...]:
    entries = data_file("runs", "evidence")["evidence"]
    return tuple((entry["name"], re.compile(entry["pattern"])) for entry in entries)


def read_text(text: str) -> Log:
    """Return steps and memory of a log. Empty if no format matches."""
    reader = Reader()
    reader.add(text)
    return reader.log


class Reader:
    """Measurements of a log that grows."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self.losses: list[tuple[int, float]] = []
        """Each loss with the number of its step, or its place in the log."""
        self.infinite_loss = ""
        self.lines = 0
        """Lines that were read."""
        self._rows: dict[str, list[Row]] = {}
        self._bars: dict[tuple[str, str, float], list[Row]] = {}
        self._peaks: dict[MemoryClass, float] = {}
        self._batches: set[int] = set()
        self._sequence: float | None = None
        self._proofs: list[Row] = []
        self._open: tuple[float, int] | None = None
        """Step whose figures follow in the next lines, and the number of its line."""
        self._last_step: float | None = None
        self._log: Log | None = None
        self._evidence: dict[str, int] = {}
        self._waits: list[float] = []

    def add(self, text: str) -> bool:
        """Read new lines; whether they have measured steps."""
        self._log = None
        before = sum(map(len, self._rows.values())) + sum(map(len, self._bars.values()))
        for line in text.splitlines():
            if line.strip():
                self.lines += 1
                self._read(_COLORS.sub("", line[:_MAX_LINE]))
        return sum(map(len, self._rows.values())) + sum(map(len, self._bars.values())) > before

    def _read(self, line: str) -> None:
        for name, pattern in _evidence():
            if pattern.search(line):
                self._evidence[name] = self._evidence.get(name, 0) + 1
        if wait := waits_in(line):
            self._waits.append(wait)
        for entry in _formats():
            if entry.literal in line and (match := entry.step.search(line)):
                self._of_format(entry, match, line)
                break
        else:
            self._of_keys(line)
        if "GB" in line or "GiB" in line or "gib" in line or "alloc" in line or "Peak" in line:
            for entry in _formats():
                _add_peaks(self._peaks, entry, line)

    def _of_format(self, entry: _Format, match: re.Match[str], line: str) -> None:
        groups = {name: value for name, value in match.groupdict().items() if value}
        description, clock = groups.pop("description", ""), groups.pop("elapsed", "")
        row = {name: value for name, text in groups.items() if (value := number(text)) is not None}
        if "eta" in groups:
            row |= _by_time_left(seconds_of(groups["eta"]), row, groups["unit"])
        parts = [row.pop(name) for name in ("forward", "backward", "update") if name in row]
        if parts:
            row["milliseconds"] = sum(parts)
        if stamp := _STAMP.search(line):
            row["clock"] = datetime.fromisoformat(stamp[1].replace(",", ".")).timestamp()
        self._note_work(line, row)
        if clock:
            row["elapsed"] = seconds_of(clock)
            if not _NOT_TRAINING.search(description):
                kind = "batches" if entry.name == "lightning-rich" or _OF_BATCHES.match(description) else "steps"
                self._note_loss(line, row.get("step"))
                self._bars.setdefault((entry.name, kind, row.pop("total", 0.0)), []).append(row)
            return
        self._rows.setdefault(entry.name, []).append(row)
        self._note_loss(line, row.get("step"))

    def _of_keys(self, line: str) -> None:
        """A line of no named format: JSON, or a step with named figures in it or in the lines after it."""
        record, step, start = None, step_in(line), line.find('{"')
        if start >= 0 and line.rstrip()[-1:] == "}":
            with suppress(ValueError):
                record = json_values(line[start:])
        if step is not None:
            self._open = (step, self.lines)
        elif self._open is not None and self.lines - self._open[1] > _AFTER_STEP:
            self._open = None
        self._note_loss(line, step if step is not None else None if self._open is None else self._open[0], own=step)
        if isinstance(record, dict):
            self._rows.setdefault(_JSON, []).append(record)
            self._note_work(line, record)
            return
        row = measures_in(line) if self._open is not None else {}
        if self._open is not None and (row or step is not None):
            self._note_work(line, row | {"step": self._open[0]})
        if row and self._open is not None:
            rows = self._rows.setdefault(_GENERIC, [])
            if step is None and rows and rows[-1].get("step") == self._open[0]:
                rows[-1] = row | rows[-1]
            else:
                rows.append(row | {"step": self._open[0]})
        elif step is None:
            self._note_work(line, {})

    def _note_work(self, line: str, row: Row) -> None:
        proofs = proofs_in(line)
        if "batch" in proofs:
            self._batches.add(int(proofs.pop("batch")))
        if (sequence := proofs.pop("sequence", None)) and "initialized" in line:
            self._sequence = sequence
        if "step" in row:
            self._last_step = row["step"]
        if proofs and self._last_step is not None:
            self._proofs.append(proofs | {"step": self._last_step})

    def _note_loss(self, line: str, step: float | None, own: float | None = None) -> None:
        if "oss" not in line:  # of any case
            return
        loss = loss_in(line, has_step=own is not None or step is not None)
        if loss is None:
            return
        self.loss = loss
        if len(self.losses) < _MAX_SAMPLES:
            self.losses.append((int(step) if step is not None else len(self.losses) + 1, loss))
        if not math.isfinite(loss) and not self.infinite_loss:
            self.infinite_loss = f"The loss is {loss} {f'at step {step:,.0f}' if step is not None else 'in the log'}"

    @property
    def step(self) -> int | None:
        """Number of the last measured step."""
        return next((sample.step for sample in reversed(self.log.samples) if sample.step is not None), None)

    @property
    def log(self) -> Log:
        """Steps and memory so far, in the first format with a measured step."""
        if self._log is None:
            waits = median(self._waits) if self._waits else None
            self._log = replace(self._read_so_far(), evidence=dict(self._evidence), data_seconds=waits)
        return self._log

    def _read_so_far(self) -> Log:
        peaks = dict(self._peaks)
        for entry in _formats():
            log = self._of_bars(entry) if "elapsed" in entry.step.groupindex else None
            if entry.name in self._rows:
                log = _log(entry.title, self._rows[entry.name])
                log = replace(log, notes=(*log.notes, *filter(None, (entry.note,))))
            if log is not None and log.samples:
                return self._proven(replace(log, peak_gib=peaks))
        for title in (_JSON, _GENERIC):
            if title in self._rows:
                log = read_records(self._rows[title], title) if title == _JSON else _log(title, self._rows[title])
                if log.samples:
                    peaks = dict(log.peak_gib) or peaks
                    return self._proven(replace(log, peak_gib=peaks))
        return Log(title="log without measured steps", peak_gib=peaks)

    def _of_bars(self, entry: _Format) -> Log | None:
        """Return the bar that runs longest, that of training: bars of evaluations begin again and again."""
        keys = [key for key in self._bars if key[0] == entry.name]
        if not keys:
            return None
        key = max(keys, key=lambda key: (max(row["elapsed"] for row in self._bars[key]), len(self._bars[key])))
        readings = [(row["step"], row["elapsed"]) for row in self._bars[key] if "step" in row]
        samples = tuple(_differences(readings))
        unit: Unit = "batch_seconds" if key[1] == "batches" else "seconds"
        note = ("Its bar counts batches of the loader, not optimizer steps.",) if unit == "batch_seconds" else ()
        return Log(title=entry.title, unit=unit, samples=samples, notes=note)

    def _proven(self, log: Log) -> Log:
        """Return the log with the work of a step that further figures show."""
        work = dict(log.work)
        for name, key in (("samples", "consumed"), ("tokens", "tokens")):
            points = [(row["step"], row[key]) for row in self._proofs if key in row]
            if name not in work and len(points) > 1 and points[-1][0] > points[0][0] and points[-1][1] > points[0][1]:
                work[name] = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
        rates = [row["tflops"] for row in self._proofs if row.get("tflops")]
        times = [sample.value for sample in log.samples if sample.value > 0]
        if rates and log.unit == "seconds" and times and not {"tokens", "tokens per GPU"} & work.keys():
            work["TFLOP per GPU"] = median(rates) * median(times)
        if self._sequence:
            work["tokens per sequence"] = self._sequence
        several = len(self._batches) > 1
        return replace(
            log,
            work=work,
            global_batch_size=None if several or not self._batches else next(iter(self._batches)),
            notes=(*log.notes, *(("The global batch changes during the run.",) if several else ())),
        )


def _by_time_left(left: float, row: Row, unit: str) -> Row:
    """Return seconds per step of Keras's bar: by the time left, which has more digits, where both agree."""
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    printed, steps = row["per_step"] * scale, row["total"] - row["step"]
    if not steps:
        return {}
    exact = left / steps
    if abs(exact - printed) <= 0.5 * scale + 1 / steps:
        return {"seconds": exact} if abs(exact - printed) <= 0.5 * scale else {}
    return {"seconds": printed} if unit != "s" or printed >= 20 else {}


_TIMES = {
    "seconds": "seconds per step",
    "milliseconds": "milliseconds per step",
    "run_steps_per_second": "steps per second of the entire run",
    "tokens_per_second_per_gpu": "tokens per second per GPU",
    "tokens_per_second": "tokens per second of the cluster",
    "samples_per_second": "samples per second of the cluster",
    "partial_samples_per_second": "samples per second of the cluster, without a part of the step",
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
    rows = list(rows)[-_MAX_SAMPLES:]
    clocked = _by_clock(rows)
    if clocked is not None:
        return replace(clocked, title=title)
    field = next((name for name in _TIMES if any(name in row for row in rows)), "seconds")
    entire = field == "run_steps_per_second"
    # Iterations per optimizer step, of a log that numbers both.
    both, repeats = [(row["iteration"], row["step"]) for row in rows if "iteration" in row and "step" in row], 1.0
    if len(both) > 1 and both[-1][1] > both[0][1]:
        repeats = max(1.0, round((both[-1][0] - both[0][0]) / (both[-1][1] - both[0][1])))
    work: dict[str, list[float]] = {}
    samples = []
    for row in rows:
        if not (value := row.get(field)):
            continue
        rate = field.endswith("steps_per_second")
        seconds = {"seconds": value, "milliseconds": value / 1000}.get(field, 1 / value if rate else 0.0) * repeats
        for name, of in _RATES.items():
            if (product := seconds * row.get(name, 0.0)) and not (rate and value < _LEAST_RATE):
                work.setdefault(of, []).append(product)
        step = row.get("step")
        timed = entire or (seconds and not rate)
        samples.append(Sample(None if step is None else int(step), seconds if timed else value))
    kind = field.removeprefix("partial_")
    unit: Unit = "run_seconds" if entire else next((unit for unit in get_args(Unit) if unit == kind), "seconds")
    if any("batch_number" in row for row in rows):
        unit = "batch_seconds"
    # One standard deviation of the logarithm of printed rates, by their last digit.
    rates, error = [row[field] for row in rows if field in row and field.endswith("steps_per_second")], 0.0
    if rates and median(rates) > 0:
        digits = max(len(f"{rate:.12g}".partition(".")[2]) for rate in rates)
        error = 10.0**-digits / math.sqrt(12) / median(rates)
    return Log(
        title=title,
        unit=unit,
        samples=tuple(samples),
        work={of: median(values) for of, values in work.items()},
        error=error,
        notes=(ENTIRE_RUN,) if entire else (),
    )


def _by_clock(rows: Sequence[Mapping[str, float]]) -> Log | None:
    """Return steps by the time stamps of lines whose rate omits a part of the step, or by the time since the start.

    That time counts if the log has no other, or only the mean since the start.
    """
    marked = [(row["step"], row["clock"]) for row in rows if "clock" in row and "partial_samples_per_second" in row]
    if len(marked) >= 3:
        samples = [
            Sample(int(step), (now - then) / (step - last) if step > last and now > then else 0.0)
            for (last, then), (step, now) in pairwise(marked)
        ]
        return Log(title="", samples=tuple(samples), notes=("The step time is by the time stamps of the lines.",))
    elapsed = [row for row in rows if "elapsed" in row and "step" in row]
    if len(elapsed) < 3:
        return None
    last = elapsed[-1]
    own = last.get("seconds") or (1 / last["steps_per_second"] if last.get("steps_per_second") else 0.0)
    if own and not 0.98 < own * last["step"] / max(last["elapsed"], 1e-9) < 1.02:
        return None
    since_start = tuple(_differences([(row["step"], row["elapsed"]) for row in elapsed]))
    note = "The step time is by the time since the start."
    return Log(title="", samples=since_start, notes=(note,)) if since_start else None


def _add_peaks(peaks: dict[MemoryClass, float], entry: _Format, line: str) -> None:
    """Highest peaks by class, GiB."""
    for pattern in entry.memory:
        for match in pattern.finditer(line):
            for name, value in match.groupdict().items():
                if size := number(value):
                    key: MemoryClass = "allocated" if name == "allocated" else "reserved"
                    peaks[key] = max(peaks.get(key, 0.0), size * entry.memory_bytes / 2**30)


def _differences(readings: Sequence[tuple[float, float]]) -> Iterable[Sample]:
    """Yield seconds per step between readings of a clock. A restart begins with a new reading."""
    if not readings:
        return
    last_step, last_time = readings[0]
    inner = [readings[0]]
    for step, time in readings[1:]:
        if step < last_step or time < last_time:
            yield Sample(int(step), 0.0)  # a restart has no duration
            last_step, last_time, inner = step, time, [(step, time)]
            continue
        inner.append((step, time))
        if step > last_step and time - last_time >= _LEAST_ELAPSED:
            yield Sample(int(step), (time - last_time) / (step - last_step), tuple(inner))
            last_step, last_time, inner = step, time, [(step, time)]


def read_records(records: Iterable[Mapping[str, Any]], title: str) -> Log:
    """Return steps of rows with named values. The names are those of ``[columns]`` in ``data/formats.toml``."""
    rows = [row for _, row in zip(range(_MAX_SAMPLES), records, strict=False)]
    names: dict[str, list[str]] = data_file("runs", "formats")["columns"]
    present = {key for row in rows for key in row}
    column = {field: name for field, options in names.items() for name in options[::-1] if name in present}
    fields = [
        {field: value for field, name in column.items() if (value := number(row.get(name))) is not None} for row in rows
    ]
    log = _log(title, fields)
    clocks = [name for name in names["elapsed"] if name in present]
    if not log.samples or not {"seconds", "milliseconds", "steps_per_second"} & column.keys():
        readings = [
            (row["step"], seconds_of(str(record[clocks[0]])))
            for record, row in zip(rows, fields, strict=True)
            if clocks and "step" in row and clocks[0] in record
        ]
        if samples := tuple(_differences(readings)):
            return Log(title=title, samples=samples, notes=(f"Step times are from {clocks[0]!r}: inferred.",))
    peaks = {kind: max((row.get(kind, 0.0) for row in fields), default=0.0) for kind in get_args(MemoryClass)}
    time = next((field for field in _TIMES if field in column), None)
    note = () if time is None else (f"Step times are from {column[time]!r}, read as {_TIMES[time]}: inferred.",)
    return replace(log, peak_gib={kind: peak for kind, peak in peaks.items() if peak}, notes=note)


def read_trainer_state(state: Mapping[str, Any]) -> Log:
    """Seconds per step of Hugging Face's Trainer (`TrainerState`): its runtime less evaluations, over its own steps.

    A resumed run has the runtime of its last call and the steps of all: ``train_steps_per_second`` separates them.
    """
    history = [entry for entry in state.get("log_history", ()) if isinstance(entry, dict)]
    ends = [place for place, entry in enumerate(history) if number(entry.get("train_runtime"))]
    total = number(state.get("global_step"))
    title = "Hugging Face Trainer (trainer_state.json)"
    if not ends or not total:
        return Log(title=title)
    last = history[ends[-1]]
    runtime, rate = number(last["train_runtime"]) or 0.0, number(last.get("train_steps_per_second"))
    steps = min(total, max(round(runtime * rate), 1)) if rate else total
    notes = ["The file has only the time of the run, including start-up, data loading and saves."]
    if steps < 0.98 * total:
        notes.append(f"The run was resumed: {steps:,.0f} of {total:,.0f} steps are of its last call.")
    else:
        steps = total
    own = [entry for entry in history if (number(entry.get("step")) or total) > total - steps]
    evaluation = math.fsum(number(entry.get("eval_runtime")) or 0.0 for entry in own)
    if 0 < evaluation < runtime:
        notes.append(f"{evaluation:,.0f} s of evaluation are subtracted.")
    else:
        evaluation = 0.0
    sample = Sample(int(total), (runtime - evaluation) / steps)
    rates = {name: number(last.get(f"train_{name}")) or 0.0 for name in _RATES}
    work = _log(title, [{**rates, "run_steps_per_second": steps / runtime}]).work
    return Log(title=title, unit="run_seconds", samples=(sample,), work=work, notes=tuple(notes))
