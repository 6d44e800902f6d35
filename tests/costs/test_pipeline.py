"""The schedule: its order, how many microbatches it holds, how long it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.costs.pipeline import in_flight, makespan_slots, simulate
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.layouts import layout_of
from smp_advisor.workload import Job

schedules = st.integers(1, 12).flatmap(
    lambda stages: st.integers(1, 24).flatmap(
        lambda microbatches: st.tuples(st.just(stages), st.just(microbatches), st.integers(1, microbatches))
    )
)


def _layout(stages: int, microbatches: int, active: int, *, simple: bool) -> Layout:
    plan = Plan(
        pipeline_parallel_degree=stages,
        microbatches=microbatches,
        active_microbatches=microbatches if simple else active,
        pipeline="simple" if simple else "interleaved",
        batch_size=microbatches,
    )
    return layout_of([plan], Job())


@given(schedules, st.floats(0.3, 4.0), st.booleans())
def test_array_form_equals_simulation(case: tuple[int, int, int], ratio: float, simple: bool) -> None:
    stages, microbatches, active = case
    step = simulate(stages, microbatches, active, backward=ratio, simple=simple)
    slots = makespan_slots(_layout(stages, microbatches, active, simple=simple))[0]
    assert step.makespan == pytest.approx(slots * (1 + ratio))


@given(schedules, st.booleans(), st.floats(0, 1))
def test_every_pass_runs_once_in_a_possible_order(case: tuple[int, int, int], simple: bool, transfer: float) -> None:
    stages, microbatches, active = case
    step = simulate(stages, microbatches, active, transfer=transfer, simple=simple)
    ends = {(s.stage, s.kind, s.microbatch): s for s in step.slots}
    assert len(ends) == len(step.slots) == 2 * stages * microbatches
    for (stage, kind, microbatch), slot in ends.items():
        if kind == "forward" and stage:
            assert slot.start >= ends[stage - 1, "forward", microbatch].end + transfer
        if kind == "backward":
            before = (stage + 1, "backward") if stage < stages - 1 else (stage, "forward")
            assert slot.start >= ends[*before, microbatch].end
    for stage in range(stages):
        mine = sorted((s for s in step.slots if s.stage == stage), key=lambda s: s.start)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(mine))


@given(schedules)
def test_no_stage_holds_more_than_its_active_microbatches(case: tuple[int, int, int]) -> None:
    stages, microbatches, active = case
    assert simulate(stages, microbatches, active).in_flight <= active
    assert simulate(stages, microbatches, active, simple=True).in_flight == microbatches


def test_known_makespans() -> None:
    # GPipe and 1F1B take (m + p - 1) slots; one microbatch at a time takes m p.
    assert simulate(4, 8, 8).makespan == 11 * 3
    assert simulate(4, 8, 4, simple=True).makespan == 11 * 3
    assert simulate(4, 8, 1).makespan == 32 * 3


def test_memory_counts_the_microbatches_in_flight() -> None:
    interleaved = _layout(4, 16, 6, simple=False)
    assert in_flight(interleaved).tolist() == [6]
    assert in_flight(_layout(4, 16, 6, simple=True)).tolist() == [16]
    alone = replace(interleaved, pipeline_parallel_degree=np.array([1]))
    assert in_flight(alone).tolist() == [1]  # without a pipeline microbatches run one after another
