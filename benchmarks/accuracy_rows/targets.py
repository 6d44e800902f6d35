"""Targets of the accuracy benchmark next to the figures that it measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Target", "targets"]


@dataclass(frozen=True)
class Target:
    """One target. A figure counts as it is printed, and a target without one is not met."""

    title: str
    aim: str
    achieved: str
    met: bool


def targets(result: dict[str, Any]) -> list[Target]:
    """All targets, in the order of the page."""
    return [*_step_time(result), *_memory(result), *_decisions(result)]


def _at_most(title: str, entry: dict[str, Any], **limits: float) -> Target:
    """Median and 90th percentile, in percent."""
    found = [entry.get(name) for name in limits]
    aim = " / ".join(f"{limit:g} %" for limit in limits.values())
    if any(value is None for value in found):
        return Target(title, aim, "-", met=False)
    values = [100 * float(value) for value in found if value is not None]
    met = all(round(value, 1) <= limit for value, limit in zip(values, limits.values(), strict=True))
    return Target(title, aim, " / ".join(f"{value:.1f} %" for value in values), met=met)


def _step_time(result: dict[str, Any]) -> Iterator[Target]:
    left, users = result["headlines"]["left_out"], result["headlines"]["users"]
    if left:
        yield _at_most("Step time, source left out (median / p90)", left["all"], median=8, p90=25)
        yield _at_most("The same after one measured run of the source (median)", left["after_one_run"], median=7)
        yield _within("Within the 95 % interval, source left out", left["within"], 93, 97)
        width = left["width"]
        yield Target("Median width of these intervals", "at most 0.60", f"{width:.2f}", met=round(width, 2) <= 0.6)
    if users:
        yield _at_most("Users' code on AWS (median)", users["all"], median=12)
        unnamed = [row["id"] for row in users["each"] if abs(row["error"]) > 0.6931 and not row["cause"]]
        yield Target(
            "Of these beyond a factor of 2 without a warning with the cause", "0", f"{len(unnamed)}", met=not unnamed
        )
        v1 = [abs(row["error"]) for row in users["each"] if row["group"] == "SMP v1"]
        close = sum(error <= 0.25 for error in v1)
        yield Target("Of these SMP v1, within 25 %", f"{len(v1)} of {len(v1)}", f"{close}", met=close == len(v1))
        yield _within("Within the 95 % interval, users' code on AWS", users["within"], 85, 100)
    yield _at_most("Residual of the fit, A100 and H100", result["step_time_a100_h100"], median=5.7, p90=18.4)
    yield _at_most("Residual of the fit, other GPUs", result["step_time_other"], median=7.3, p90=33.4)


def _within(title: str, entry: dict[str, Any], low: float, high: float) -> Target:
    aim = f"{low:g} to {high:g} %" if high < 100 else f"at least {low:g} %"
    if entry["share"] is None:
        return Target(title, aim, "-", met=False)
    share = 100 * entry["share"]
    return Target(title, aim, f"{share:.1f} %", met=low <= round(share, 1) <= high)


def _memory(result: dict[str, Any]) -> Iterator[Target]:
    yield _at_most("Peak memory, allocated (median / p90)", result["memory_allocated"], median=3.1, p90=12)
    yield _at_most("Peak memory, reserved and total (median / p90)", result["memory_total"], median=5.2, p90=13)


def _decisions(result: dict[str, Any]) -> Iterator[Target]:
    fit, ranking, batch = result["fit"], result["ranking"], result["max_batch"]
    false, missed = fit["false_oom"], fit["missed_oom_at_search_margin"]
    if false["share"] is not None:
        share = 100 * false["share"]
        yield Target("Ran, predicted not to fit", "at most 1.5 %", f"{share:.1f} %", met=round(share, 1) <= 1.5)
    if missed["share"] is not None:
        cases = missed["cases"]
        found = cases - round(missed["share"] * cases)
        least = cases - 1
        yield Target(
            "Ran out of memory, recognized (less than 95 % sure to fit)",
            f"at least {least} of {cases}",
            f"{found} of {cases}",
            met=found >= least,
        )
    if batch["median_factor"] is not None:
        factor = batch["median_factor"]
        yield Target("Largest batch, median factor", "at most 1.15", f"{factor:.2f}", met=round(factor, 2) <= 1.15)
    if ranking["regret_median"] is not None:
        median, mean = 100 * ranking["regret_median"], 100 * ranking["regret_mean"]
        yield Target(
            "Regret of the predicted best (median / mean)",
            "0 % / 2 %",
            f"{median:.1f} % / {mean:.1f} %",
            met=round(median, 1) == 0 and round(mean, 1) <= 2,
        )
