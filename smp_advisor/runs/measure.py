"""From a log or figures of the user to a measured run of one plan, without warm-up, restarts, saves and evaluation."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from smp_advisor.advice.learned import needed
from smp_advisor.core.files import data_file, ends, opened, sentence, user_path
from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.costs.evaluate import estimate, trained
from smp_advisor.costs.observation import observed
from smp_advisor.costs.wording import step_time
from smp_advisor.errors import CalibrationError
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.validation import check_against
from smp_advisor.runs.readers import (
    Log,
    MemoryClass,
    Sample,
    read_records,
    read_trainer_state,
)
from smp_advisor.runs.steps import log_of_text, typical
from smp_advisor.workload.calibration import ACCEPTED, Calibration, MeasuredRun, MemoryKind

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload import Job, Model


_FIRST_BYTES = 2**20
_LAST_BYTES = 7 * 2**20
"""Bytes of a longer log that are read: its settings are at the start, its steady steps and its failure at the end."""
_UNREADABLE = (
    "no measured steps: lines with a step number and its seconds, steps, samples or tokens per second, a progress bar "
    "of training, JSON lines, or trainer_state.json"
)
FIGURES = "your figures"
"""Title of measurements without a log."""
_CERTAIN_RUN = 0.1
"""Error of the step time if only the time of the entire run is measured."""
PREFERRED: tuple[MemoryClass, ...] = ("total", "reserved", "allocated")


def log_of_figures(
    step_seconds: float | None, peak_gib: float | None, peak_kind: str | None, *, out_of_memory: bool
) -> Log:
    """Measurements without a log, as a log."""
    for name, value in (("step_seconds", step_seconds), ("peak_gib", peak_gib)):
        number: object = value
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1e9:
            raise CalibrationError(f"{name} must be a number above 0 and below 1e9, not {number!r:.80}.")
    if peak_kind is not None and peak_kind not in get_args(MemoryClass):
        raise CalibrationError(f"peak_kind must be one of {', '.join(get_args(MemoryClass))}, not {peak_kind!r:.80}.")
    if peak_gib is not None and out_of_memory:
        raise CalibrationError("A run that ran out of memory has no peak: leave peak_gib or out_of_memory out.")
    kind = next((name for name in PREFERRED if name == peak_kind), PREFERRED[-1])
    note = "The peak is read as torch.cuda.max_memory_allocated: inferred. Set peak_kind if it is another."
    return Log(
        title=FIGURES,
        samples=() if step_seconds is None else (Sample(None, float(step_seconds)),),
        peak_gib={} if peak_gib is None else {kind: float(peak_gib)},
        out_of_memory=out_of_memory,
        notes=(note,) if peak_gib is not None and peak_kind is None else (),
    )


def measure(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    run: Any,
    earlier: Calibration | None = None,
    accept: bool = False,
) -> Calibration:
    """Return `earlier` with one more run, of a log. See `Advice.calibrate`."""
    log, name = read_run(run)
    measured = measured_run(log, model, cluster, job, plan, name=name, accept=accept)
    calibration = Calibration(runs=(measured,)) if earlier is None else earlier.with_runs([measured])
    before = estimate(model, cluster, replace(job, calibration=earlier), plan)
    after = estimate(model, cluster, replace(job, calibration=calibration), plan)
    change = f"Measured plan: step time {step_time(before)} -> {step_time(after)}"
    change += f"; memory needed {needed(before)} -> {needed(after)}." if measured.memory_kind else "."
    runs = (*calibration.runs[:-1], replace(measured, notes=(*measured.notes, change)))
    return Calibration(runs=runs)


def read_run(run: Any) -> tuple[Log, str]:
    """Content and name of a log, from its path or text, ``trainer_state.json`` as a dictionary, or rows."""
    if isinstance(run, Log):
        return _required(run, "The run")
    if hasattr(run, "to_dict") and hasattr(run, "columns"):
        return _required(read_records(run.to_dict("records"), "DataFrame"), "The DataFrame")
    if isinstance(run, Mapping):
        return _required(read_trainer_state(run), "The dictionary")
    if isinstance(run, list | tuple) and all(isinstance(row, Mapping) for row in run):
        return _required(read_records(run, "rows"), "The list")
    if isinstance(run, str) and ("\n" in run.strip() or "\r" in run.strip()):
        raw, missing = ends(BytesIO(run.encode("utf-8", "replace")), _FIRST_BYTES, _LAST_BYTES)
        return _required(log_of_text(raw.decode("utf-8", "replace")), "The text", missing)
    if not isinstance(run, str | Path):
        raise CalibrationError(f"A run is the path or text of a log, or a DataFrame, not {type(run).__name__}.")
    try:
        with opened(user_path(run, OSError)) as file:
            raw, missing = ends(file, _FIRST_BYTES, _LAST_BYTES)
    except (OSError, ValueError) as error:
        if isinstance(run, str) and not (log := log_of_text(run)).is_empty:
            return log, ""
        reason = getattr(error, "strerror", None) or str(error)
        raise CalibrationError(f"The log {os.fspath(run)!r:.200} cannot be read: {reason}.") from None
    name = Path(run).name
    log, _ = _required(log_of_text(raw.decode("utf-8", "replace")), f"The log {name!r:.100}", missing)
    return log, name


def _required(log: Log, what: str, missing: int = 0) -> tuple[Log, str]:
    """Return a log that is not empty, without the `missing` bytes in its middle."""
    if missing:
        note = f"The log is long: {missing / 1e6:,.1f} MB in its middle were not read."
        log = replace(log, notes=(*log.notes, note))
    if log.is_empty:
        raise CalibrationError(" ".join((f"{what} has {_UNREADABLE}.", *log.notes)))
    return log, ""


def measured_run(
    log: Log, model: Model, cluster: Cluster, job: Job, plan: Plan, *, name: str = "", accept: bool = False
) -> MeasuredRun:
    """Return the run of a plan that a log measured. `accept` takes what is unlikely, never what no hardware reaches."""
    check_against(plan, cluster, model, job)
    # A figure of another batch, or of a run with a fault, would teach the wrong thing about every later plan.
    batch = global_batch_size(plan, cluster)
    if log.global_batch_size is not None and log.global_batch_size != batch:
        raise CalibrationError(sentence("runs", "other_batch", logged=log.global_batch_size, batch=batch))
    faults = [entry["sentence"] for entry in explained(log, cluster) if entry.get("fault")]
    if faults and not accept:
        raise CalibrationError(sentence("runs", "fault", faults="; ".join(faults)))
    _require_work(log, batch, model, cluster, job, accept=accept)
    # The typical step, and what was left out of it: the notes are what a reader can check the figure by.
    notes = list(log.notes)
    figures = typical(timed(log, model, cluster, job, plan))
    if figures is not None and log.title != FIGURES:
        unit = f"{figures.steps} of {len(log.samples)} values, median {figures.seconds:.4g} s per step"
        notes.append(f"{unit}, spread {100 * figures.spread:.1f} %." if figures.steps > 1 else f"{unit}.")
        notes += [f"Dropped {count}: {reason}." for reason, count in figures.dropped]
    if figures is not None and log.global_batch_size is None and not log.work:
        notes.append(f"The global batch is taken from the plan, {batch:,} samples per step: inferred.")
    # Memory. A run that ran out of it shows a lower limit of the need, not the need.
    kind: MemoryKind = ""
    peak = None
    if log.out_of_memory:
        kind = "out of memory"
        peak = max(log.peak_gib.values(), default=None)
        least = cluster.instance.usable_gpu_memory_gib
        if peak is not None and peak > _UNLIKELY_MEMORY * least:
            raise CalibrationError(sentence("runs", "too_large", peak=peak, least=least))
        notes.append(f"The run ran out of memory: it needs more than {max(least, peak or 0.0):.4g} GiB.")
    elif log.peak_gib:
        memory = next(name for name in PREFERRED if name in log.peak_gib)
        kind, peak = memory, log.peak_gib[memory]
        notes.append(f"Peak {peak:.4g} GiB {kind}, taken as that of the stage with the most memory.")
    if figures is None and not kind:
        raise CalibrationError("The log has no usable value: every step took no time.")
    error = 0.0 if figures is None else figures.error
    run = observed(
        model,
        cluster,
        job,
        layout_of_plan(plan, job, cluster),
        step_seconds=None if figures is None else figures.seconds,
        step_error=math.hypot(error, log.error, _CERTAIN_RUN if log.unit == "run_seconds" else 0.0),
        memory_gib=peak,
        memory_kind=kind,
        source=": ".join(filter(None, (log.title, name)))[:200],
        notes=tuple(note[:400] for note in notes),
    )
    _require_possible(run, model, cluster, job, plan, accept=accept)
    doubt = "; ".join(faults) or _doubt_of(log, run, model, cluster, job, plan)
    if doubt and not accept:
        raise CalibrationError(sentence("runs", "doubt", doubt=doubt))
    return replace(run, notes=(*run.notes, f"{ACCEPTED} {doubt}.")) if doubt else run


def explained(log: Log, cluster: Cluster) -> list[Mapping[str, Any]]:
    """Evidence of the lines of a log that counts on a cluster, as in ``evidence.toml``."""
    return [
        entry
        for entry in data_file("runs", "evidence")["evidence"]
        if entry["name"] in log.evidence
        and (cluster.nodes > 1 or not entry.get("across_nodes"))
        and (cluster.instance.efa or not entry.get("efa"))
    ]


def timed(log: Log, model: Model, cluster: Cluster, job: Job, plan: Plan) -> list[Sample]:
    """The samples of a log as seconds per step of a plan, whose batch turns rates into times; 0 for no measurement."""
    batch = global_batch_size(plan, cluster)
    tokens = batch * model.sequence_length(job.sequence_length)
    work = {
        "samples_per_second": batch,
        "tokens_per_second": tokens,
        "tokens_per_second_per_gpu": tokens / cluster.gpus,
        "steps_per_second": 1,
    }
    if log.unit in work:
        return [Sample(s.step, work[log.unit] / s.value if s.value > 0 else 0.0) for s in log.samples]
    times = plan.gradient_accumulation_steps if log.unit == "batch_seconds" else 1
    return [
        Sample(s.step, times * max(s.value, 0.0), tuple((step, times * clock) for step, clock in s.readings))
        for s in log.samples
    ]


_ROUNDED = 1.1
"""Factor between the batch and the product of a printed rate and step time: both are rounded, and batches padded."""
_UNPROVEN = 1.4
"""Factor to the estimate, inside of its interval, to which a log is believed that does not show its batch: half of a
batch or sequence takes 0.5 to 0.65 of the time."""
_COUNTED = 1.5
"""The same for printed TFLOP/s: programs count attention and recomputation differently."""


def _require_work(log: Log, batch: int, model: Model, cluster: Cluster, job: Job, *, accept: bool) -> None:
    """Refuse figures of another batch or length; `accept` takes an entire run, whose data may end inside a batch."""
    entire, length = log.unit == "run_seconds", model.sequence_length(job.sequence_length)
    flops = model_flops_per_sample(trained(model, job), length) * batch / cluster.gpus
    expected = {
        "samples": batch,
        "tokens": batch * length,
        "tokens per GPU": batch * length // cluster.gpus,
        "tokens per sequence": length,
        "TFLOP per GPU": flops / 1e12,
    }
    for unit, value in log.work.items():
        planned = expected[unit]
        near = _COUNTED if unit.startswith("TFLOP") else _ROUNDED
        if not 1 / near < value / planned < near and not (entire and accept):
            words = ", or accept=True (--accept) if it is" if entire else ""
            figures = {"logged": round(value), "unit": unit, "planned": planned, "batch": batch, "gpus": cluster.gpus}
            raise CalibrationError(sentence("runs", "other_work", **figures, accept=words))


def _doubt_of(log: Log, run: MeasuredRun, model: Model, cluster: Cluster, job: Job, plan: Plan) -> str:
    """Return why a log may be of another run: its time is far from the estimate, and nothing in it shows the batch."""
    # Figures of the log can show the batch and the length of a step.
    tokens = bool({"tokens", "tokens per GPU"} & log.work.keys())
    samples = "samples" in log.work or log.global_batch_size is not None
    lengths = not model.reads_tokens or bool({"tokens per sequence", "TFLOP per GPU"} & log.work.keys())
    is_proven = tokens or (samples and lengths)
    if run.step_seconds is None or log.title == FIGURES or is_proven:
        return ""
    before = estimate(model, cluster, job, plan)
    low, high = before.step_seconds_range
    low, high = max(low, before.step_seconds / _UNPROVEN), min(high, before.step_seconds * _UNPROVEN)
    if low <= run.step_seconds <= high:
        return ""
    figures = {"taken": run.step_seconds, "before": before.step_seconds, "low": low, "high": high}
    return sentence("runs", "unproven", **figures)


_UNLIKELY_TIME, _UNLIKELY_MEMORY = 5.0, 3.0
"""Factors to the estimate beyond which a figure is rather that of another run or unit: published runs are within a
factor of 4.1 of the step time and of 2 of the memory."""
_UNREACHED = 0.85
"""Share of the peak rate that no published run reaches."""


def _require_possible(run: MeasuredRun, model: Model, cluster: Cluster, job: Job, plan: Plan, *, accept: bool) -> None:
    """Refuse what no hardware reaches, and without `accept` what is unlikely."""
    instance, seconds, peak = cluster.instance, run.step_seconds, run.memory_gib
    doubts = []
    if seconds is not None:
        # Attention is left out of the count, so the rate is a lower limit.
        tokens = global_batch_size(plan, cluster) * model.sequence_length(job.sequence_length)
        rate = model_flops_per_sample(trained(model, job), 1) * tokens / cluster.gpus / seconds / 1e12
        most = (job.fp8 and instance.fp8_tflops) or instance.peak_tflops
        needs = f"A step of {seconds:.4g} s needs {rate:,.0f} TFLOP/s on each GPU, whose peak is {most:,.0f}"
        if rate > most:
            raise CalibrationError(f"{needs}: pass seconds per optimizer step, with the plan and cluster of the run.")
        if rate > _UNREACHED * most:
            doubts.append(needs)
        elif not 1 / _UNLIKELY_TIME < (ratio := seconds / run.predicted_seconds) < _UNLIKELY_TIME:
            doubts.append(f"A step of {seconds:.4g} s is {ratio:.3g} times the estimate")
    if run.memory_kind in PREFERRED and peak is not None and run.predicted_gib is not None:
        if peak > instance.gpu_memory_gib:
            raise CalibrationError(sentence("runs", "large_peak", peak=peak, instance=instance))
        if not 1 / _UNLIKELY_MEMORY < (ratio := peak / run.predicted_gib) < _UNLIKELY_MEMORY:
            doubts.append(f"A peak of {peak:.4g} GiB is {ratio:.3g} times the estimate")
    if doubts and not accept:
        raise CalibrationError(sentence("runs", "unlikely", doubts="; ".join(doubts)))
