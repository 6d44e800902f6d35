"""Key figures of an estimate as texts, and groups of equal stages for its bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.guidance.overheads import overhead_summary
from smp_advisor.live.labels import dollars
from smp_advisor.wording import (
    between,
    cost_per_million,
    gives_back,
    number,
    run_cost,
    run_time,
    seconds,
    spare,
    token_rate,
    utilization,
)

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.model import Model

__all__ = ["Figure", "figures", "gib", "step_range"]


_TWO_SIDED = 1.96
"""Standard deviations to either side of a normal error that contain 95 %."""


class Figure(NamedTuple):
    """One key figure: label, value, small note below, and the setting that the glossary explains."""

    label: str
    value: str
    note: str
    term: str


def gib(value: float) -> str:
    """GiB with one decimal."""
    return f"{value:,.1f} GiB"


def figures(model: Model, estimate: Estimate) -> list[Figure]:
    """Figures for the decision, with the same labels in the same order for every plan of a job."""
    batch, rate = f"{estimate.global_batch_size:,} samples", ""
    if model.reads_tokens:
        batch += f", {estimate.tokens_per_step:,} tokens"
        rate = f"; {token_rate(estimate)}"
    peak, usable = estimate.memory.peak.total_gib, estimate.usable_gpu_memory_gib
    result = [
        Figure("Memory per GPU", f"{peak:,.1f} of {gib(usable)}", _memory_note(estimate), "needed_gib"),
        Figure(
            "Throughput",
            f"{number(estimate.samples_per_second)} samples/s",
            f"{_range(estimate.samples_per_second_range)}{rate}",
            "tokens_per_second",
        ),
        Figure("Step time", seconds(estimate.step_seconds), f"{step_range(estimate)}; {batch}", "step_seconds"),
        Figure(
            "Compute per GPU",
            f"{number(estimate.tflops_per_gpu)} TFLOP/s",
            f"{_range(estimate.tflops_per_gpu_range)}; {utilization(estimate)} of peak (MFU)",
            "mfu",
        ),
    ]
    result.append(_price(model, estimate))
    if (days := estimate.days_range) is not None:
        value, _, _ = run_time(estimate).partition(" (")
        total = f"{run_cost(estimate)} in total" if estimate.usd_total is not None else "price unknown"
        scale = 24 if value.endswith("hours") else 1
        result.append(Figure("Full run", value, f"{_range(days, scale)}; {total}", "days_range"))
    result.append(_effective(estimate))
    return result


def _effective(estimate: Estimate) -> Figure:
    """Share of training steps in the elapsed time, with the other parts."""
    value = f"{100 * estimate.effective.share:.1f} %"
    return Figure("Effective time", value, overhead_summary(estimate), "effective_time")


def step_range(estimate: Estimate) -> str:
    """Interval of the step time in the unit in which `seconds` shows it."""
    return _range(estimate.step_seconds_range, 1000 if estimate.step_seconds < 0.9995 else 1)


def _memory_note(estimate: Estimate) -> str:
    error = f"± {gib(_TWO_SIDED * estimate.memory_error_gib)} (95 %)".replace(" ", "\N{NO-BREAK SPACE}")
    if not gives_back(estimate):
        return error
    return f"{gib(estimate.needed_gib)} needed, {error}; {spare(estimate)}".replace(" GiB", "\N{NO-BREAK SPACE}GiB")


def _range(ends: tuple[float, float], scale: float = 1.0) -> str:
    return f"95\N{NO-BREAK SPACE}%: {between(ends, scale)}"


def _price(model: Model, estimate: Estimate) -> Figure:
    if estimate.usd_per_hour is None:
        return Figure("Price", "unknown", "no on-demand price in the table", "usd_per_hour")
    note = cost_per_million(model, estimate)
    return Figure("Price", f"{dollars(estimate.usd_per_hour)} per hour", note, "usd_per_hour")
