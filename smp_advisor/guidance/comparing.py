"""Phrases that compare two estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance import ranges
from smp_advisor.guidance.wording import degree_of_change, gib

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate

__all__ = ["compared", "figures"]


def compared(current: Estimate, alternative: Estimate) -> str:
    """Predicate of an alternative plan against the current one: memory, and step time or throughput.

    Step times are compared if both plans process the same global batch, throughputs otherwise.
    """
    needed, reference = gib(alternative.needed_gib), gib(current.needed_gib)
    memory = f"the same {reference} per GPU" if needed == reference else f"{needed} per GPU (vs {reference})"
    if current.global_batch_size == alternative.global_batch_size:
        before, after = ranges.step_time(current), ranges.step_time(alternative)
        change = degree_of_change(current.step_seconds, alternative.step_seconds, more="longer", less="shorter")
        time = f"the same {after} per step" if before == after else f"{after} per step, vs {before}: {change}"
        return f"needs {memory} and takes {time}"
    before, after = ranges.throughput(current), ranges.throughput(alternative)
    change = degree_of_change(current.samples_per_second, alternative.samples_per_second)
    speed = f"the same {after}" if before == after else f"{after}, vs {before}: {change}"
    return f"needs {memory} and processes {speed}"


def figures(with_: Estimate | None, without: Estimate | None) -> tuple[tuple[str, str], ...]:
    """Needed memory, step time and throughput with and without a technique, as (label, value) pairs."""
    rows: list[tuple[str, str]] = []
    for label, estimate in (("with", with_), ("without", without)):
        if estimate is not None:
            rows += [
                (f"memory needed {label}", gib(estimate.needed_gib)),
                (f"step time {label}", ranges.step_time(estimate)),
                (f"throughput {label}", ranges.throughput(estimate)),
            ]
    return tuple(rows)
