"""The figures of one estimate: label, value, 95 % interval and unit, once for every surface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.core.tables import Figure
from smp_advisor.costs.uncertainty import TWO_SIDED

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.model import Model

_LEAST_SHOWN_SECONDS = 0.9995
"""Shorter steps are shown in milliseconds: ``1.00 s``, ``999 ms``."""


def figures_of(model: Model, estimate: Estimate) -> dict[str, Figure]:
    """Return the figures of an estimate by their terms: the names of its fields.

    Missing are the cost per hour and per million without a known price, time and cost of the run without tokens, and
    the rate of tokens of a model that reads none.
    """
    figures = [
        memory(estimate),
        Figure(
            label="Headroom per GPU",
            value=estimate.headroom_gib,
            unit="GiB",
            term="headroom_gib",
            note="usable, not needed",
        ),
        step_time(estimate),
        throughput(estimate),
        *([token_rate(estimate)] if model.reads_tokens else []),
        compute(estimate),
        utilization(estimate),
    ]
    if estimate.usd_per_hour is not None:
        figures.append(Figure(label="Price", value=estimate.usd_per_hour, unit="USD per hour", term="usd_per_hour"))
    figures += [
        figure
        for figure in (cost_per_million(model, estimate), run_time(estimate), run_cost(estimate))
        if figure is not None
    ]
    share = 100 * estimate.effective.share
    figures.append(
        Figure(
            label="Effective time",
            value=share,
            unit="%",
            term="effective_time",
            note="of the elapsed time in training steps",
        )
    )
    return {figure.term: figure for figure in figures}


def memory(estimate: Estimate) -> Figure:
    """Return the memory needed per GPU."""
    needed, error = estimate.needed_gib, TWO_SIDED * estimate.memory_error_gib
    return Figure(
        label="Memory per GPU",
        value=needed,
        interval=(max(needed - error, 0.0), needed + error),
        unit="GiB",
        term="needed_gib",
        note=f"of {estimate.usable_gpu_memory_gib:,.1f} GiB usable",
    )


def duration(estimate: Estimate, seconds: float, label: str = "Step time") -> Figure:
    """Return a part of the step, which is as uncertain as the step: in ms below a second."""
    unit, scale = ("ms", 1000) if seconds < _LEAST_SHOWN_SECONDS else ("s", 1)
    low, high = estimate.step_factors
    value = scale * seconds
    return Figure(label=label, value=value, interval=(low * value, high * value), unit=unit, term="step_seconds")


def step_time(estimate: Estimate) -> Figure:
    """Return the time of an optimizer step."""
    return duration(estimate, estimate.step_seconds)


def throughput(estimate: Estimate) -> Figure:
    """Return the samples per second of the cluster."""
    return Figure(
        label="Throughput",
        value=estimate.samples_per_second,
        interval=estimate.samples_per_second_range,
        unit="samples/s",
        term="samples_per_second",
    )


def token_rate(estimate: Estimate) -> Figure:
    """Return the tokens per second of the cluster."""
    return Figure(
        label="Throughput",
        value=estimate.tokens_per_second,
        interval=estimate.tokens_per_second_range,
        unit="tokens/s",
        term="tokens_per_second",
    )


def rate(model: Model, estimate: Estimate) -> Figure:
    """Return the throughput in the unit of the model: tokens, or samples."""
    return token_rate(estimate) if model.reads_tokens else throughput(estimate)


def compute(estimate: Estimate) -> Figure:
    """Return the model FLOP/s per GPU."""
    return Figure(
        label="Compute per GPU",
        value=estimate.tflops_per_gpu,
        interval=estimate.tflops_per_gpu_range,
        unit="TFLOP/s",
        term="tflops_per_gpu",
    )


def utilization(estimate: Estimate) -> Figure:
    """Return the model FLOPs utilization (MFU)."""
    low, high = estimate.mfu_range
    return Figure(
        label="Utilization",
        value=100 * estimate.mfu,
        interval=(100 * low, 100 * high),
        unit="%",
        term="mfu",
        note="of peak",
    )


def cost_per_million(model: Model, estimate: Estimate) -> Figure | None:
    """Return the USD per million tokens, or samples of a model that reads none; None without a price."""
    price, ends = estimate.usd_per_million_tokens, estimate.usd_per_million_tokens_range
    if price is None or ends is None:
        return None
    tokens = 1 if model.reads_tokens else model.fixed_sequence_length or 1
    return Figure(
        label="Cost",
        value=tokens * price,
        interval=(tokens * ends[0], tokens * ends[1]),
        unit="USD",
        term="usd_per_million_tokens",
        note=f"per million {'tokens' if model.reads_tokens else 'samples'}",
    )


def run_time(estimate: Estimate) -> Figure | None:
    """Return the elapsed time of the run, in hours below a day; None without tokens."""
    days, ends = estimate.days, estimate.days_range
    if days is None or ends is None:
        return None
    unit, scale = ("days", 1) if days >= 1 else ("hours", 24)
    interval = (scale * ends[0], scale * ends[1])
    return Figure(label="Full run", value=scale * days, interval=interval, unit=unit, term="days")


def run_cost(estimate: Estimate) -> Figure | None:
    """Return the cost of the run; None without tokens or a price."""
    total, ends = estimate.usd_total, estimate.usd_total_range
    if total is None or ends is None:
        return None
    return Figure(label="Cost of the run", value=total, interval=ends, unit="USD", term="usd_total")
