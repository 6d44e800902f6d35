"""The pipeline schedule, simulated pass by pass."""

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
    """One forward or backward pass of one microbatch on one stage; times in the caller's unit."""

    stage: int
    kind: Kind
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A simulated step."""

    slots: tuple[Slot, ...]
    """In order of their start."""
    makespan: float
    in_flight: int
    """Most microbatches a stage holds between their forward and backward pass."""


class _Stage:
    """What one stage has done and may do next."""

    def __init__(self, allowance: int, microbatches: int, *, simple: bool) -> None:
        self.allowance = allowance
        self.simple = simple
        self.microbatches = microbatches
        self.forwards = self.backwards = 0
        self.free = 0.0
        self.forward_ready: list[float | None] = [None] * microbatches
        self.backward_ready: list[float | None] = [None] * microbatches

    def next_pass(self) -> tuple[float, Kind, int] | None:
        """Start, kind and microbatch of the pass this stage would run next; a ready backward pass goes first."""
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
    """Run one step's schedule with equal stages.

    Parameters
    ----------
    stages, microbatches
        Pipeline parallel degree and microbatches of a step.
    active
        Microbatches a stage may hold at once (``active_microbatches``). A stage never uses more than
        ``stages - stage``, the depth of the pipeline below it: more would not start any pass earlier.
    forward, backward, transfer
        Durations of one stage's pass and of a hand-over between stages.
    simple
        All forward passes before any backward pass (``pipeline="simple"``); otherwise backward passes go first
        whenever one is ready (``"interleaved"``).

    Notes
    -----
    The library documents that its interleaved pipeline prefers backward passes and bounds the microbatches in flight
    by ``active_microbatches``; the cap by depth is assumed for time, not for memory.
    """
    line = [
        _Stage(microbatches if simple else min(active, microbatches, stages - i), microbatches, simple=simple)
        for i in range(stages)
    ]
    line[0].forward_ready = [0.0] * microbatches
    slots: list[Slot] = []
    most_held = 0
    for _ in range(2 * stages * microbatches):
        ready = [(found[0], i, found) for i, stage in enumerate(line) if (found := stage.next_pass())]
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
        most_held = max(most_held, stage.forwards - stage.backwards)
        slots.append(Slot(i, kind, j, start, end))
    return Schedule(tuple(slots), max(stage.free for stage in line), most_held)


def makespan_slots(layout: Layout) -> NDArray[np.float64]:
    """Length of each plan's step in slots of one forward plus one backward pass of its slowest stage, shape (n,).

    Without a pipeline this is the number of microbatches; the excess over it is the bubble. It is what `simulate`
    gives for equal stages and immediate hand-overs, whatever the ratio of backward to forward (a property test holds
    the two together): ``active`` microbatches go round the pipeline together, one slot apart, and the next ones start
    when the first comes back after ``stages`` slots. Virtual stages divide the time to fill the pipeline by their
    number (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    stages, microbatches = layout.pipeline_parallel_degree, layout.microbatches
    together = np.minimum(np.where(layout.simple_pipeline, microbatches, layout.active_microbatches), stages)
    rounds, rest = np.divmod(microbatches - 1, np.maximum(together, 1))
    interleaved = rounds * stages + rest + stages
    spans = np.where(layout.simple_pipeline, microbatches + stages - 1, interleaved)
    return microbatches + (spans - microbatches) / layout.virtual_stages


def in_flight(layout: Layout, stage: int = 0) -> NDArray[np.float64]:
    """Microbatches whose activations a GPU of a stage may hold at once, shape (n,).

    ``pipeline="simple"``: all of them; ``"interleaved"``: at most min(active_microbatches, microbatches). Whether SMP
    v1 also caps this by the depth of the pipeline is not documented, so its memory is planned without that cap. With
    it (1F1B) a stage holds as many as there are stages from it to the last; with v virtual stages
    ``(2 (p - i - 1) + (v - 1) p + 1) / v`` of them (Narayanan et al. 2021, arXiv 2104.04473, figure 4).
    """
    degree, chunks = layout.pipeline_parallel_degree, layout.virtual_stages
    bound = np.minimum(layout.active_microbatches, layout.microbatches).astype(np.float64)
    left = degree - np.minimum(stage, degree - 1)
    warm = np.where(chunks > 1, (2 * (left - 1) + (chunks - 1) * degree + 1) / chunks, left)
    bound = np.where(layout.depth_bounds_activations, np.minimum(warm, layout.microbatches), bound)
    bound = np.where(layout.simple_pipeline, layout.microbatches, bound)
    return np.where(degree > 1, bound, 1.0)
