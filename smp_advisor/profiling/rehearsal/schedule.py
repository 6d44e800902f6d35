"""What PyTorch's pipeline schedule does, slot by slot, beside what the cost model says it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.costs.pipeline import simulate

if TYPE_CHECKING:
    from smp_advisor.profiling.rehearsal.degrees import Degrees

__all__ = ["Slots", "expected_slots", "in_flight", "record"]

Slots = list[tuple[str, int]]
"""Passes of one stage in order: ``("forward", 0)``, ..."""


def record(stage: Any) -> Slots:
    """A list that fills with the passes that a `PipelineStage` runs."""
    seen: Slots = []
    for kind in ("forward", "backward"):
        name = f"{kind}_one_chunk"
        original = getattr(stage, name)

        def noted(chunk: int, *arguments: Any, _kind: str = kind, _original: Any = original, **keywords: Any) -> Any:
            seen.append((_kind, chunk))
            return _original(chunk, *arguments, **keywords)

        setattr(stage, name, noted)
    return seen


def expected_slots(degrees: Degrees) -> list[Slots]:
    """Passes of each stage in the order that the cost model's schedule has them."""
    schedule = simulate(
        degrees.pipeline, degrees.microbatches, degrees.microbatches, simple=degrees.schedule == "simple"
    )
    return [
        [(slot.kind, slot.microbatch) for slot in schedule.slots if slot.stage == stage]
        for stage in range(degrees.pipeline)
    ]


def in_flight(slots: Slots) -> int:
    """Most microbatches between their forward and their backward pass."""
    held = most = 0
    for kind, _ in slots:
        held += 1 if kind == "forward" else -1
        most = max(most, held)
    return most
