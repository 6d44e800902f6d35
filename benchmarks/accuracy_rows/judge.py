"""Comparison of all rows with their predictions, and the resulting figures."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError

from . import predict
from .arithmetic import rate
from .known_good import known_good_run
from .max_batch import largest_batch
from .plans import run_of
from .sweeps import sweeps
from .table import SkippedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .plans import Run
    from .sweeps import Sweep
    from .table import Row, Table

__all__ = ["Judged", "Scored", "figures", "judge"]

_CLASSES = {"allocated": "memory_allocated", "reserved": "memory_total", "total": "memory_total"}
_TWO_SIDED = 1.96
_UNUSABLE = (SkippedError, AdvisorError, ArithmeticError, ValueError)
"""Errors that an inconsistent row raises, here or in the cost model."""
_LIKELY = 0.5
_CERTAIN = 0.95


@dataclass(frozen=True)
class Scored:
    """One row with its prediction."""

    row: Row
    run: Run | None
    predicted: float
    measured: float
    terms: dict[str, float] = field(default_factory=dict)
    """Parts of the prediction."""
    interval: tuple[float, float] | None = None
    """95 % interval of the cost model, in the unit of the prediction."""

    @property
    def half_widths_off(self) -> float:
        """Distance of the measured value from the prediction in half widths of the interval."""
        if self.interval is None:
            return math.inf
        return abs(self.measured - self.predicted) / ((self.interval[1] - self.interval[0]) / 2)

    @property
    def error(self) -> float:
        """Natural logarithm of predicted over measured."""
        return math.log(self.predicted / self.measured)

    @property
    def is_public(self) -> bool:
        """Whether settings that users have describe the row."""
        return self.run is not None and self.run.plan is not None


@dataclass
class Judged:
    """All scored rows."""

    scored: dict[str, list[Scored]] = field(default_factory=lambda: defaultdict(list))
    """Rows by figure: ``memory_allocated``, ``memory_total``, ``step_time_a100_h100``, ``step_time_other``,
    ``max_batch``, and per-stage rows under ``per_stage_…``."""
    skipped: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Reasons by figure."""
    ran: dict[tuple[object, ...], tuple[Row, float]] = field(default_factory=dict)
    """Configurations that ran, with their fit probability, each once."""
    ran_out: dict[tuple[object, ...], tuple[Row, float]] = field(default_factory=dict)
    """Configurations that ran out of memory, each once."""
    sweeps: list[Sweep] = field(default_factory=list)


def judge(tables: Iterable[Table]) -> Judged:
    """Score the rows of the tables."""
    judged = Judged()
    by_kind: dict[str, Callable[[Judged, Row], None]] = {
        "memory": _memory_row,
        "throughput": _throughput_row,
        "known_good": _known_good_row,
        "max_batch": _max_batch_row,
    }
    for table in tables:
        for row in table.rows:
            if row.judged:
                by_kind[table.kind](judged, row)
    timed = [*judged.scored["step_time_a100_h100"], *judged.scored["step_time_other"], *judged.scored["assumed"]]
    judged.sweeps = sweeps(
        (entry.row, entry.run, entry.predicted, entry.measured) for entry in timed if entry.run is not None
    )
    return judged


def _memory_row(judged: Judged, row: Row) -> None:
    figure = _CLASSES.get(row.text("mem_class"))
    per_stage = row.text("plan_kind") == "per-stage"
    if not row.scorable and not per_stage:
        return
    measured = row.positive("memory_gib_per_gpu")
    scores = figure is not None and measured is not None
    if per_stage:
        figure = f"per_stage_{figure}" if scores else None
    try:
        run = run_of(row)
        if not per_stage:
            _fit(judged, row, run)
        if scores and figure is not None:
            judged.scored[figure].append(_memory(row, run))
    except _UNUSABLE as reason:
        # A row without scored memory is still judged for its fit.
        judged.skipped[figure or "fit"][str(reason)] += 1


def _memory(row: Row, run: Run) -> Scored:
    prediction = predict.memory(run)
    predicted = prediction.of_class(row.text("mem_class"))
    half = _TWO_SIDED * prediction.error_gib[row.text("mem_class")]
    measured = row.positive("memory_gib_per_gpu") or math.nan
    return Scored(row, run, predicted, measured, prediction.terms, (predicted - half, predicted + half))


def _throughput_row(judged: Judged, row: Row) -> None:
    per_stage = row.text("plan_kind") == "per-stage"
    if not row.scorable and not per_stage:
        return
    figure = _time_figure(row, per_stage=per_stage)
    timed = bool(row.positive("step_time_s") or row.positive("tokens_per_s_per_gpu"))
    try:
        run = run_of(row)
        if not per_stage:
            _fit(judged, row, run)
        if timed:
            terms = predict.step_seconds(run)
            seconds = sum(terms.values())
            low, high = predict.step_interval(run)
            ends = (low * seconds, high * seconds)
            judged.scored[figure].append(Scored(row, run, seconds, _measured_seconds(row, run), terms, ends))
    except _UNUSABLE as reason:
        judged.skipped[figure if timed else "fit"][str(reason)] += 1


def _time_figure(row: Row, *, per_stage: bool) -> str:
    if per_stage:
        return "per_stage_step_time"
    if not row.text("gpu").startswith(("a100", "h100")):
        return "step_time_other"
    return "step_time_a100_h100" if row.text("network_known") == "yes" else "assumed"


def _measured_seconds(row: Row, run: Run) -> float:
    seconds = row.positive("step_time_s")
    if seconds:
        return seconds
    layout = run.layout
    replicas = run.cluster.gpus // int(
        layout.tensor_parallel_degree[0] * layout.pipeline_parallel_degree[0] * layout.context_parallel_degree[0]
    )
    tokens = int(layout.batch_samples[0]) * replicas * run.model.sequence_length(run.job.sequence_length)
    return tokens / ((row.positive("tokens_per_s_per_gpu") or 0.0) * run.cluster.gpus)


def _fit(judged: Judged, row: Row, run: Run) -> None:
    outcome = row.text("outcome")
    configurations = judged.ran_out if outcome == "oom" else judged.ran
    if run.identity not in configurations:
        configurations[run.identity] = (row, predict.fits(run))


def _known_good_row(judged: Judged, row: Row) -> None:
    try:
        _fit(judged, row, known_good_run(row))
    except _UNUSABLE as reason:
        judged.skipped["fit"][str(reason)] += 1


def _max_batch_row(judged: Judged, row: Row) -> None:
    measured = row.positive("max_batch_per_gpu_native")
    if measured is None:
        return
    try:
        judged.scored["max_batch"].append(Scored(row, None, largest_batch(row), measured))
    except _UNUSABLE as reason:
        judged.skipped["max_batch"][str(reason)] += 1


def figures(judged: Judged) -> dict[str, Any]:
    """Decisions on fit, ranking and batches, and the reasons of skipped rows, as plain data."""
    ran, out = list(judged.ran.values()), list(judged.ran_out.values())
    taus = [sweep.kendall_tau for sweep in judged.sweeps if sweep.kendall_tau is not None]
    regrets = [sweep.regret for sweep in judged.sweeps]
    factors = [math.exp(abs(row.error)) for row in judged.scored["max_batch"]]
    return {
        "fit": {
            "false_oom": _rate(ran, fits=False),
            "missed_oom": _rate(out, fits=True),
            "false_oom_at_search_margin": _rate(ran, fits=False, threshold=_CERTAIN),
            "missed_oom_at_search_margin": _rate(out, fits=True, threshold=_CERTAIN),
        },
        "ranking": {
            "sweeps": len(judged.sweeps),
            "kendall_tau_median": median(taus) if taus else None,
            "regret_median": median(regrets) if regrets else None,
            "regret_mean": mean(regrets) if regrets else None,
        },
        "max_batch": {"rows": len(factors), "median_factor": median(factors) if factors else None},
        "skipped": {figure: dict(reasons) for figure, reasons in judged.skipped.items()},
    }


def _rate(cases: list[tuple[Row, float]], *, fits: bool, threshold: float = _LIKELY) -> dict[str, Any]:
    """Share of the cases that are predicted (not) to fit with at least the probability `threshold`."""
    hits = sum((probability >= threshold) == fits for _, probability in cases)
    return asdict(rate(hits, len(cases)))
