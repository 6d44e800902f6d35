"""The schedule of a step has the parts of the estimate, one pass at a time, in the order of the pipeline."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.schedule import step_schedule
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job, Model

MODEL = Model.from_shape(name="test", layers=24, hidden=2048, heads=16, vocab=50_000, max_positions=1024)
CLUSTER = Cluster("ml.p4d.24xlarge", 4)
JOB = Job(sequence_length=512)


def plan(stages: int, microbatches: int, active: int, pipeline: str = "interleaved", tensor: int = 1) -> Plan:
    active = microbatches if pipeline == "simple" else min(active, microbatches)
    return Plan(
        pipeline_parallel_degree=stages, tensor_parallel_degree=tensor, microbatches=microbatches, pipeline=pipeline,
        active_microbatches=active, batch_size=2 * microbatches, fp16=True, activation_checkpointing="each", ddp=True,
    )  # fmt: skip


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["interleaved", "simple"]),
    st.sampled_from([1, 4]),
)
def test_stages_work_on_one_part_at_a_time_and_as_long_as_the_estimate(stages, microbatches, active, pipeline, tensor):
    made = plan(stages, microbatches, active, pipeline, tensor)
    value = estimate(MODEL, CLUSTER, JOB, made)
    schedule = step_schedule(MODEL, CLUSTER, JOB, made, value)
    of_stage = defaultdict(list)
    for span in schedule.spans:
        of_stage[span.stage].append(span)
    assert sorted(of_stage) == list(range(stages))
    sums = {}
    for stage, spans in of_stage.items():
        spans.sort(key=lambda span: span.start)
        for first, second in pairwise(spans):
            assert second.start >= first.start + first.seconds - 1e-9
        sums[stage] = {part: sum(s.seconds for s in spans if s.part == part) for part in {s.part for s in spans}}
    for part in ("forward_seconds", "recomputation_seconds", "optimizer_seconds", "data_parallel_seconds"):
        most = max(total.get(part, 0.0) for total in sums.values())
        assert most == pytest.approx(getattr(value.time, part), rel=0.3, abs=1e-9)
    slowest = max(sums.values(), key=lambda total: sum(total.values()))
    bubble = value.time.pipeline_bubble_seconds
    assert sum(slowest.values()) == pytest.approx(value.step_seconds - bubble, rel=1e-6)
    assert schedule.end >= value.step_seconds * (1 - 1e-9)


def test_a_microbatch_passes_the_stages_in_order_and_returns():
    schedule = step_schedule(MODEL, CLUSTER, JOB, plan(4, 8, 8))
    starts = {(span.part, span.stage, span.microbatch): span.start for span in schedule.spans if span.microbatch >= 0}
    for microbatch in range(8):
        forward = [starts["forward_seconds", stage, microbatch] for stage in range(4)]
        backward = [starts["backward_seconds", stage, microbatch] for stage in range(4)]
        assert forward == sorted(forward)
        assert backward == sorted(backward, reverse=True)
        assert backward[3] > forward[3]


def test_very_many_microbatches_are_cut():
    schedule = step_schedule(MODEL, CLUSTER, Job(sequence_length=512, max_tokens_per_step=2**30), plan(8, 512, 8))
    assert schedule.shown == 128
    assert schedule.microbatches == 512
    assert {span.microbatch for span in schedule.spans} == set(range(128))
