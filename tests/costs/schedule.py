"""Simulation of a pipeline's step, pass by pass."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


Kind = Literal["forward", "backward"]


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
    simple: bool = False,
) -> float:
    """Seconds of a simulated step with the durations of one pass, for all stages or one per stage.

    With `simple`, all forward passes precede all backward passes. Otherwise (``"interleaved"``) a stage starts
    microbatches up to `active` and the remaining depth of the pipeline (an assumption: with equal stages, more would
    not start any pass earlier), and then alternates backward and forward passes (1F1B). If `active` is less than the
    depth, what is ready first runs first.
    """
    durations: dict[Kind, list[float]] = {
        "forward": np.broadcast_to(forward, stages).tolist(),
        "backward": np.broadcast_to(backward, stages).tolist(),
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
                line[i + 1].forward_ready[j] = end
        else:
            stage.backwards += 1
            if i:
                line[i - 1].backward_ready[j] = end
    return max(stage.free for stage in line)
