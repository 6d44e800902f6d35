"""The schedule: how long it takes, and how many microbatches it holds."""

from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.costs.constants import constant
from smp_advisor.costs.step_time import _bubble, handover_seconds, makespan_seconds, makespan_slots
from smp_advisor.costs.world import World, in_flight
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import Layout, layout_of
from smp_advisor.workload import Job
from tests.costs.shapes import P4D, gpt

schedules = st.integers(1, 12).flatmap(
    lambda stages: st.integers(1, 24).flatmap(
        lambda microbatches: st.tuples(st.just(stages), st.just(microbatches), st.integers(1, microbatches))
    )
)


def _layout(stages: int, microbatches: int, active: int, *, simple: bool) -> Layout:
    active, pipeline = (microbatches, "simple") if simple else (active, "interleaved")
    settings = {"microbatches": microbatches, "active_microbatches": active, "batch_size": microbatches}
    return layout_of([Plan(pipeline_parallel_degree=stages, pipeline=pipeline, **settings)], Job())


@given(schedules, st.floats(0.3, 4.0), st.booleans())
def test_array_form_equals_simulation(case: tuple[int, int, int], ratio: float, simple: bool) -> None:
    stages, microbatches, active = case
    step = simulate(stages, microbatches, active, backward=ratio, simple=simple)
    slots = makespan_slots(_layout(stages, microbatches, active, simple=simple))[0]
    assert step == pytest.approx(slots * (1 + ratio))


@st.composite
def uneven(draw: st.DrawFn) -> tuple[list[float], list[float], int, int]:
    """Durations of the passes of each stage, microbatches, and active microbatches."""
    stages, microbatches = draw(st.integers(1, 10)), draw(st.integers(1, 24))
    forward = draw(st.lists(st.floats(0.5, 2.0), min_size=stages, max_size=stages))
    backward = draw(st.lists(st.floats(0.5, 4.0), min_size=stages, max_size=stages))
    return forward, backward, microbatches, draw(st.integers(1, microbatches))


def _seconds(forward: list[float], backward: list[float], layout: Layout) -> float:
    """Closed form with every stage a kind of its own."""
    columns = [np.array(values)[:, np.newaxis] for values in (forward, backward)]
    return float(makespan_seconds(layout, *columns, [(kind, 1) for kind in range(len(forward))])[0])


@given(uneven())
def test_forward_passes_before_backward_passes_take_the_sum_of_the_stages_and_the_slowest(
    case: tuple[list[float], list[float], int, int],
) -> None:
    forward, backward, microbatches, _ = case
    stages = len(forward)
    step = simulate(stages, microbatches, microbatches, forward=forward, backward=backward, simple=True)
    law = sum(forward) + sum(backward) + (microbatches - 1) * (max(forward) + max(backward))
    if stages > 1:
        assert step == pytest.approx(law)
    layout = _layout(stages, microbatches, microbatches, simple=True)
    assert _seconds(forward, backward, layout) == pytest.approx(step)


@given(uneven())
def test_closed_form_of_unequal_stages_follows_the_simulation(
    case: tuple[list[float], list[float], int, int],
) -> None:
    forward, backward, microbatches, active = case
    stages = len(forward)
    every = simulate(stages, microbatches, microbatches, forward=forward, backward=backward)
    seconds = _seconds(forward, backward, _layout(stages, microbatches, microbatches, simple=False))
    assert seconds == pytest.approx(every, rel=0.12)
    assert seconds <= every * (1 + 1e-9)
    # Few active microbatches and unequal stages: what is ready first is not always best first.
    few = simulate(stages, microbatches, active, forward=forward, backward=backward)
    assert _seconds(forward, backward, _layout(stages, microbatches, active, simple=False)) == pytest.approx(
        few, rel=0.3
    )


@given(st.integers(2, 12), st.integers(1, 24), st.floats(0.3, 3.0), st.floats(1.0, 3.0))
def test_the_head_on_the_last_stage_lengthens_the_step_as_simulated(
    stages: int, microbatches: int, last: float, ratio: float
) -> None:
    forward = [1.0] * (stages - 1) + [last]
    backward = [ratio * seconds for seconds in forward]
    step = simulate(stages, microbatches, microbatches, forward=forward, backward=backward)
    layout = _layout(stages, microbatches, microbatches, simple=False)
    assert _seconds(forward, backward, layout) == pytest.approx(step)
    # Two kinds of stages instead of as many as there are stages.
    columns = [np.array(values[-2:])[:, np.newaxis] for values in (forward, backward)]
    kinds = makespan_seconds(layout, *columns, [(0, stages - 1), (1, 1)])[0]
    assert kinds == pytest.approx(step)


@given(uneven())
def test_a_faster_stage_never_lengthens_the_step(case: tuple[list[float], list[float], int, int]) -> None:
    forward, backward, microbatches, active = case
    layout = _layout(len(forward), microbatches, active, simple=False)
    faster = [forward[0] / 2, *forward[1:]]
    assert _seconds(faster, backward, layout) <= _seconds(forward, backward, layout) * (1 + 1e-9)


def test_known_makespans() -> None:
    # GPipe and 1F1B take (m + p - 1) slots; one microbatch at a time takes m p.
    assert simulate(4, 8, 8) == 11 * 3
    assert simulate(4, 8, 4, simple=True) == 11 * 3
    assert simulate(4, 8, 1) == 32 * 3


@pytest.mark.parametrize("microbatches", [4, 8])
def test_transfers_are_waited_for_while_a_pipeline_fills_and_slow_every_microbatch(microbatches: int) -> None:
    model, cluster, job = gpt(layers=8, hidden=1024, heads=16), Cluster(P4D, 2), Job(sequence_length=512)
    plan = Plan(pipeline_parallel_degree=4, microbatches=microbatches, batch_size=microbatches, fp16=True)
    layout = layout_of([plan], job)
    world = World.of(model, cluster, job, layout)
    idle = (4 - 1) * (1 + 2)
    found = _bubble(model, cluster, layout, world, 4, [(1.0, 2.0)] * 4)
    hop = handover_seconds(model, cluster, layout, world)
    waited = 4 - 1 + constant("time.contention_across_nodes") * microbatches
    assert found == pytest.approx(idle + 2 * hop * waited)
    assert hop > constant("communication.host_handover_seconds")


def test_memory_counts_the_microbatches_in_flight() -> None:
    cases = {(4, False): 6, (4, True): 16, (1, False): 1}  # without a pipeline microbatches run one after another
    for (stages, simple), count in cases.items():
        assert in_flight(_layout(stages, 16, 6, simple=simple)).tolist() == [count]
    # Where the depth bounds them, those of the stages that remain; with virtual stages by the figure of the paper.
    bounded = replace(_layout(4, 16, 16, simple=False), depth_bounds_activations=np.array([True]))
    divided = replace(bounded, virtual_stages=np.array([2]))
    assert [[float(in_flight(of, stage)[0]) for stage in (0, 3)] for of in (bounded, divided)] == [[4, 1], [5.5, 2.5]]


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
