"""The figures of one estimate: label, value, 95 % interval and unit, once for every surface."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.core.tables import Figure
from smp_advisor.costs.uncertainty import TWO_SIDED

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.model import Model

_LEAST_SHOWN_SECONDS = 0.9995
"""Shorter steps are shown in milliseconds: ``1.00 s``, ``999 ms``."""


class _Form(NamedTuple):
    """How a field of an estimate is shown."""

    label: str
    unit: str
    scale: float = 1
    """Of the field's own unit."""
    note: str = ""


_FORMS = {
    "samples_per_second": _Form("Throughput", "samples/s"),
    "tokens_per_second": _Form("Throughput", "tokens/s"),
    "tflops_per_gpu": _Form("Compute per GPU", "TFLOP/s"),
    "mfu": _Form("Utilization", "%", 100, "of peak"),
    "usd_total": _Form("Cost of the run", "USD"),
}


def figures_of(model: Model, estimate: Estimate) -> dict[str, Figure]:
    """Return the figures of an estimate by their terms: the names of its fields.

    Missing are the cost per hour and per million without a known price, time and cost of the run without tokens, and
    the rate of tokens of a model that reads none.
    """
    headroom, hourly, share = estimate.headroom_gib, estimate.usd_per_hour, 100 * estimate.effective.share
    of_elapsed = "of the elapsed time in training steps"
    figures = (
        memory(estimate),
        Figure(label="Headroom per GPU", value=headroom, unit="GiB", term="headroom_gib", note="usable, not needed"),
        duration(estimate, estimate.step_seconds),
        figure(estimate, "samples_per_second"),
        figure(estimate, "tokens_per_second") if model.reads_tokens else None,
        figure(estimate, "tflops_per_gpu"),
        figure(estimate, "mfu"),
        None if hourly is None else Figure(label="Price", value=hourly, unit="USD per hour", term="usd_per_hour"),
        cost_per_million(model, estimate),
        run_time(estimate),
        figure(estimate, "usd_total"),
        Figure(label="Effective time", value=share, unit="%", term="effective_time", note=of_elapsed),
    )
    return {entry.term: entry for entry in figures if entry is not None}


def figure(estimate: Estimate, term: str, form: _Form | None = None) -> Figure | None:
    """Return the figure of a field with a range; None where the field is unknown."""
    label, unit, scale, note = form or _FORMS[term]
    value, ends = getattr(estimate, term), getattr(estimate, f"{term}_range")
    if value is None or ends is None:
        return None
    interval = (scale * ends[0], scale * ends[1])
    return Figure(label=label, value=scale * value, interval=interval, unit=unit, term=term, note=note)


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


def cost_per_million(model: Model, estimate: Estimate) -> Figure | None:
    """Return the USD per million tokens, or samples of a model that reads none; None without a price."""
    tokens, what = (1, "tokens") if model.reads_tokens else (model.fixed_sequence_length or 1, "samples")
    return figure(estimate, "usd_per_million_tokens", _Form("Cost", "USD", tokens, f"per million {what}"))


def run_time(estimate: Estimate) -> Figure | None:
    """Return the elapsed time of the run, in hours below a day; None without tokens."""
    is_long = estimate.days is None or estimate.days >= 1
    return figure(estimate, "days", _Form("Full run", "days") if is_long else _Form("Full run", "hours", 24))
