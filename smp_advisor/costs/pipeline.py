"""Simulation of the pipeline schedule, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.libraries.layout import Layout

__all__ = ["Schedule", "Slot", "in_flight", "makespan_slots", "simulate"]

Kind = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One forward or backward pass of one microbatch on one stage. Times are in the caller's unit."""

    stage: int
    kind: Kind
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A simulated step."""

    slots: tuple[Slot, ...]
    """Slots in order of their start."""
    makespan: float
    in_flight: int
    """Maximum number of microbatches on a stage between their forward and backward pass."""


class _Stage:
    """Progress and possible next passes of one stage."""

    def __init__(self, allowance: int, microbatches: int, *, simple: bool) -> None:
        self.allowance = allowance
        self.simple = simple
        self.microbatches = microbatches
        self.forwards = self.backwards = 0
        self.free = 0.0
        self.forward_ready: list[float | None] = [None] * microbatches
        self.backward_ready: list[float | None] = [None] * microbatches

    def next_pass(self) -> tuple[float, Kind, int] | None:
        """Start, kind and microbatch of the next pass of this stage. A ready backward pass has priority."""
        backward = forward = None
        if self.backwards < self.microbatches and (not self.simple or self.forwards == self.microbatches):
            backward = self.backward_ready[self.backwards]
        if self.forwards < self.microbatches and self.forwards - self.backwards < self.allowance:
            forward = self.forward_ready[self.forwards]
        if backward is not None and (forward is None or max(backward, self.free) <= max(forward, self.free)):
            return max(backward, self.free), "backward", self.backwards
        if forward is not None:
            return max(forward, self.free), "forward", self.forwards
        return None


def simulate(
    stages: int,
    microbatches: int,
    active: int,
    *,
    forward: float = 1.0,
    backward: float = 2.0,
    transfer: float = 0.0,
    simple: bool = False,
) -> Schedule:
    """Simulate one step with equal stages.

    Parameters
    ----------
    stages, microbatches
        Pipeline parallel degree and microbatches per step.
    active
        Limit of microbatches in flight on one stage (``active_microbatches``). A stage never uses more than
        ``stages - stage``, the remaining depth of the pipeline: more would not start any pass earlier.
    forward, backward, transfer
        Durations of one pass on one stage and of a transfer between stages.
    simple
        Whether all forward passes precede all backward passes (``pipeline="simple"``). Otherwise a ready backward pass
        has priority (``"interleaved"``).

    Notes
    -----
    The library documents that its interleaved pipeline prefers backward passes and bounds the microbatches in flight
    by ``active_microbatches``. The limit by depth is an assumption for time, not for memory.
    """
    line = [
        _Stage(microbatches if simple else min(active, microbatches, stages - i), microbatches, simple=simple)
        for i in range(stages)
    ]
    line[0].forward_ready = [0.0] * microbatches
    slots: list[Slot] = []
    most_in_flight = 0
    for _ in range(2 * stages * microbatches):
        ready = [(candidate[0], i, candidate) for i, stage in enumerate(line) if (candidate := stage.next_pass())]
        start, i, (_, kind, j) = min(ready)
        stage = line[i]
        stage.free = end = start + (forward if kind == "forward" else backward)
        if kind == "forward":
            stage.forwards += 1
            if i == stages - 1:
                stage.backward_ready[j] = end
            else:
                line[i + 1].forward_ready[j] = end + transfer
        else:
            stage.backwards += 1
            if i:
                line[i - 1].backward_ready[j] = end + transfer
        most_in_flight = max(most_in_flight, stage.forwards - stage.backwards)
        slots.append(Slot(i, kind, j, start, end))
    return Schedule(tuple(slots), max(stage.free for stage in line), most_in_flight)


def makespan_slots(layout: Layout) -> NDArray[np.float64]:
    """Length of each plan's step in slots, shape (n,).

    A slot is one forward and one backward pass of the slowest stage. Without a pipeline this is the number of
    microbatches; the excess over it is the bubble. The result equals that of `simulate` for equal stages and immediate
    transfers, for any ratio of backward to forward (a property test compares them): ``active`` microbatches pass
    through the pipeline together, one slot apart, and the next ones start when the first returns after ``stages``
    slots. Virtual stages divide the time to fill the pipeline by their number (Narayanan et al. 2021, arXiv 2104.04473,
    section 2.2).
    """
    stages, microbatches = layout.pipeline_parallel_degree, layout.microbatches
    together = np.minimum(np.where(layout.simple_pipeline, microbatches, layout.active_microbatches), stages)
    rounds, remainder = np.divmod(microbatches - 1, np.maximum(together, 1))
    interleaved = rounds * stages + remainder + stages
    spans = np.where(layout.simple_pipeline, microbatches + stages - 1, interleaved)
    return microbatches + (spans - microbatches) / layout.virtual_stages


def in_flight(layout: Layout, stage: int = 0) -> NDArray[np.float64]:
    """Maximum number of microbatches with saved activations on one GPU of a stage, shape (n,).

    ``pipeline="simple"``: all of them. ``"interleaved"``: at most min(active_microbatches, microbatches). The SMP v1
    documentation does not describe a limit by the depth of the pipeline, so none is assumed. With that limit (1F1B),
    the number is that of the stages from this one to the last; with v virtual stages it is ``(2 (p - i - 1) + (v - 1) p
    + 1) / v`` (Narayanan et al. 2021, arXiv 2104.04473, figure 4).
    """
    degree, chunks = layout.pipeline_parallel_degree, layout.virtual_stages
    bound = np.minimum(layout.active_microbatches, layout.microbatches).astype(np.float64)
    remaining = degree - np.minimum(stage, degree - 1)
    warm = np.where(chunks > 1, (2 * (remaining - 1) + (chunks - 1) * degree + 1) / chunks, remaining)
    bound = np.where(layout.depth_bounds_activations, np.minimum(warm, layout.microbatches), bound)
    bound = np.where(layout.simple_pipeline, layout.microbatches, bound)
    return np.where(degree > 1, bound, 1.0)
