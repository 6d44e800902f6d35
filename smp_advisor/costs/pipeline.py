"""Simulation of the pipeline schedule, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Literal

from smp_advisor.elementwise import minimum, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout

__all__ = ["Schedule", "Slot", "in_flight", "simulate"]

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

    def __init__(self, allowance: int, microbatches: int, *, simple: bool, alternating: bool) -> None:
        self.allowance = allowance
        self.simple = simple
        self.alternating = alternating
        self.microbatches = microbatches
        self.forwards = self.backwards = 0
        self.free = 0.0
        self.last: Kind = "forward"
        self.forward_ready: list[float | None] = [None] * microbatches
        self.backward_ready: list[float | None] = [None] * microbatches

    def next_pass(self) -> tuple[float, Kind, int] | None:
        """Start, kind and microbatch of the next pass of this stage."""
        backward = forward = None
        may_start = self.forwards < self.microbatches and self.forwards - self.backwards < self.allowance
        if may_start:
            forward = self._start(self.forward_ready[self.forwards])
        if self.backwards < self.microbatches and not (
            (self.simple and self.forwards < self.microbatches) or (self.alternating and may_start)
        ):
            backward = self._start(self.backward_ready[self.backwards])
        if backward is not None:
            tie = forward is not None and isclose(backward, forward)
            if forward is None or (self.last == "forward" if tie else backward < forward):
                return backward, "backward", self.backwards
        return None if forward is None else (forward, "forward", self.forwards)

    def _start(self, ready: float | None) -> float | None:
        return None if ready is None else max(ready, self.free)


def simulate(
    stages: int,
    microbatches: int,
    active: int,
    *,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 2.0,
    transfer: float = 0.0,
    simple: bool = False,
) -> Schedule:
    """Simulate one step.

    Parameters
    ----------
    stages, microbatches
        Pipeline parallel degree and microbatches per step.
    active
        Limit of microbatches in flight on one stage (``active_microbatches``). A stage never uses more than
        ``stages - stage``, the remaining depth of the pipeline: with equal stages, more would not start any pass
        earlier.
    forward, backward
        Durations of one pass: one number for all stages, or one per stage.
    transfer
        Duration of a transfer between stages.
    simple
        Whether all forward passes precede all backward passes (``pipeline="simple"``). Otherwise
        (``"interleaved"``) a stage starts microbatches up to its limit, and then alternates backward and forward
        passes (1F1B). If `active` is less than the depth of the pipeline, a stage does not wait for its turn: what is
        ready first runs first.

    Notes
    -----
    The library documents that its interleaved pipeline prefers backward passes and bounds the microbatches in flight
    by ``active_microbatches``. The limit by depth and the order of equal candidates are assumptions for time, not for
    memory.
    """
    durations: dict[Kind, list[float]] = {
        "forward": _per_stage(forward, stages),
        "backward": _per_stage(backward, stages),
    }
    alternating = not simple and active >= min(stages, microbatches)
    line = [
        _Stage(
            microbatches if simple else min(active, microbatches, stages - i),
            microbatches,
            simple=simple,
            alternating=alternating,
        )
        for i in range(stages)
    ]
    line[0].forward_ready = [0.0] * microbatches
    slots: list[Slot] = []
    most_in_flight = 0
    for _ in range(2 * stages * microbatches):
        ready = [(candidate[0], i, candidate) for i, stage in enumerate(line) if (candidate := stage.next_pass())]
        start, i, (_, kind, j) = min(ready)
        stage = line[i]
        stage.free = end = start + durations[kind][i]
        stage.last = kind
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


def _per_stage(durations: float | Sequence[float], stages: int) -> list[float]:
    if isinstance(durations, (int, float)):
        return [float(durations)] * stages
    if len(durations) != stages:
        raise ValueError(f"{len(durations)} durations for {stages} stages")
    return [float(duration) for duration in durations]


def in_flight(layout: Layout, stage: int = 0) -> Floats:
    """Maximum number of microbatches with saved activations on one GPU of a stage, shape (n,).

    ``pipeline="simple"``: all of them. ``"interleaved"``: at most min(active_microbatches, microbatches). The SMP v1
    documentation does not describe a limit by the depth of the pipeline, so none is assumed. With that limit (1F1B),
    the number is that of the stages from this one to the last; with v virtual stages it is ``(2 (p - i - 1) + (v - 1) p
    + 1) / v`` (Narayanan et al. 2021, arXiv 2104.04473, figure 4).
    """
    degree, chunks = layout.pipeline_parallel_degree, layout.virtual_stages
    bound: Floats = 1.0 * minimum(layout.active_microbatches, layout.microbatches)
    remaining = degree - minimum(stage, degree - 1)
    warm = where(chunks > 1, (2 * (remaining - 1) + (chunks - 1) * degree + 1) / chunks, remaining)
    bound = where(layout.depth_bounds_activations, minimum(warm, layout.microbatches), bound)
    bound = where(layout.simple_pipeline, layout.microbatches, bound)
    return where(degree > 1, bound, 1.0)
