"""Speed, utilization and cost in words. Each figure has its 95 % prediction interval behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.amounts import amount, unit

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.model import Model

__all__ = [
    "between",
    "compute",
    "cost_per_million",
    "duration",
    "number",
    "run_cost",
    "run_time",
    "step_time",
    "throughput",
    "token_rate",
    "utilization",
]


def number(value: float) -> str:
    """Three significant digits, because the intervals of estimates are wide: ``1,230``, ``3.54``, ``0.0871``."""
    rounded = float(f"{value:.3g}")
    if rounded >= 1000:
        return f"{rounded:,.0f}"
    digits = f"{rounded:#.3g}".rstrip(".")
    return digits if "e" not in digits else f"{rounded:g}"


def between(ends: tuple[float, float], scale: float = 1.0) -> str:
    """The ends of an interval: ``3.02 to 4.87``."""
    return f"{number(scale * ends[0])} to {number(scale * ends[1])}"


def _ranged(value: float, ends: tuple[float, float], unit: str, scale: float = 1.0) -> str:
    return f"{number(scale * value)} {unit} ({between(ends, scale)})"


def duration(estimate: Estimate, seconds: float) -> str:
    """A part of the step: ``0.412 s (0.351 to 0.567)``, ``41.2 ms (35.1 to 56.7)``. It is as uncertain as the step."""
    low, high = estimate.step_factors
    unit, scale = ("ms", 1000) if seconds < 0.9995 else ("s", 1)
    return _ranged(seconds, (low * seconds, high * seconds), unit, scale)


def step_time(estimate: Estimate) -> str:
    """Time of a step: ``3.54 s (3.02 to 4.87)``."""
    return duration(estimate, estimate.step_seconds)


def throughput(estimate: Estimate) -> str:
    """Throughput: ``361 samples/s (263 to 424)``."""
    return _ranged(estimate.samples_per_second, estimate.samples_per_second_range, "samples/s")


def token_rate(estimate: Estimate) -> str:
    """Throughput: ``740,000 tokens/s (538,000 to 868,000)``."""
    return _ranged(estimate.tokens_per_second, estimate.tokens_per_second_range, "tokens/s")


def compute(estimate: Estimate) -> str:
    """Model FLOPs per GPU: ``152 TFLOP/s (111 to 178)``."""
    return _ranged(estimate.tflops_per_gpu, estimate.tflops_per_gpu_range, "TFLOP/s")


def utilization(estimate: Estimate) -> str:
    """Model FLOPs utilization: ``48.7 % (35.5 to 57.1)``."""
    return _ranged(estimate.mfu, estimate.mfu_range, "%", 100)


def cost_per_million(model: Model, estimate: Estimate) -> str:
    """Cost: ``0.823 USD (0.702 to 1.13) per million tokens``; empty if the price is unknown."""
    price, ends = estimate.usd_per_million_tokens, estimate.usd_per_million_tokens_range
    if price is None or ends is None:
        return ""
    return f"{_ranged(price, ends, 'USD', 1 / amount(model, 1))} per million {unit(model)}"


def run_time(estimate: Estimate) -> str:
    """Elapsed time of the run: ``21.7 days (18.5 to 29.8)``, ``7.31 hours (6.23 to 10.1)``; empty without tokens."""
    days, ends = estimate.days, estimate.days_range
    if days is None or ends is None:
        return ""
    return _ranged(days, ends, "days") if days >= 1 else _ranged(days, ends, "hours", 24)


def run_cost(estimate: Estimate) -> str:
    """Cost of the run: ``45,300 USD (38,600 to 62,300)``; empty if tokens or price are unknown."""
    total, ends = estimate.usd_total, estimate.usd_total_range
    return "" if total is None or ends is None else _ranged(total, ends, "USD")
