"""Pipeline schedules slot by slot: as PyTorch runs them, and as the cost model simulates them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.costs.pipeline import simulate

if TYPE_CHECKING:
    from smp_advisor.profiling.rehearsal.degrees import Degrees

__all__ = ["Slots", "expected_slots", "in_flight", "record"]

Slots = list[tuple[str, int]]
"""Passes of one stage in order: ``("forward", 0)``, ..."""


def record(stage: Any) -> Slots:
    """Record the passes of a `PipelineStage`; the returned list is filled as they run."""
    slots: Slots = []
    for kind in ("forward", "backward"):
        name = f"{kind}_one_chunk"
        original = getattr(stage, name)

        def recorded(chunk: int, *arguments: Any, _kind: str = kind, _original: Any = original, **keywords: Any) -> Any:
            slots.append((_kind, chunk))
            return _original(chunk, *arguments, **keywords)

        setattr(stage, name, recorded)
    return slots


def expected_slots(degrees: Degrees) -> list[Slots]:
    """Passes of each stage in the order of the cost model's schedule."""
    schedule = simulate(
        degrees.pipeline, degrees.microbatches, degrees.microbatches, simple=degrees.schedule == "simple"
    )
    return [
        [(slot.kind, slot.microbatch) for slot in schedule.slots if slot.stage == stage]
        for stage in range(degrees.pipeline)
    ]


def in_flight(slots: Slots) -> int:
    """Maximum number of microbatches between their forward and their backward pass."""
    current = peak = 0
    for kind, _ in slots:
        current += 1 if kind == "forward" else -1
        peak = max(peak, current)
    return peak
