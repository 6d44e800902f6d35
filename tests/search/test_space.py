"""What the search enumerates: every plan the schema allows, each valid, none twice."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.check import check_against
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.layout import COLUMNS
from smp_advisor.libraries.space import Space, enumerate_plans
from smp_advisor.workload import Job, Model

NODE = Cluster("ml.p4d.24xlarge", 1)


def gpt(layers: int = 6, heads: int = 8, family: str = "gpt2") -> Model:
    return Model.from_shape(layers=layers, hidden=512, heads=heads, vocab=50_000, max_positions=2048, family=family)


def sample(space: Space, most: int = 200) -> list[Plan]:
    rows = np.linspace(0, len(space) - 1, min(most, len(space))).astype(int)
    return [space.plan(int(row)) for row in np.unique(rows)]


@given(
    st.sampled_from(["fp16", "bf16", "fp32"]),
    st.sampled_from([None, 16, 48, 96]),
    st.sampled_from([6, 12]),
    st.sampled_from(["gpt2", "llama"]),
)
def test_every_enumerated_plan_is_valid_for_model_cluster_and_job(
    precision: str, batch: int | None, layers: int, family: str
) -> None:
    job = Job(sequence_length=256, precision=precision, global_batch_size=batch, max_tokens_per_step=100_000)
    model = gpt(layers, family=family)
    space = enumerate_plans(model, NODE, job)
    assert len(space) > 0
    for plan in sample(space):
        check_against(plan, NODE, model, job)
        assert plan.batch_size % plan.microbatches == 0
        assert global_batch_size(plan, NODE) * 256 <= 100_000
        if batch is not None:
            assert global_batch_size(plan, NODE) == batch


def test_no_plan_is_listed_twice() -> None:
    space = enumerate_plans(gpt(), NODE, Job(sequence_length=512, max_tokens_per_step=50_000))
    rows = np.stack([getattr(space.layout, name).astype(np.int64) for name in COLUMNS], axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_every_combination_that_the_library_accepts_is_there() -> None:
    """Build all combinations with `Plan` itself, which validates against the schema, and compare."""
    model, job = gpt(), Job(sequence_length=256, global_batch_size=16)
    expected = set()
    choices = product((1, 2, 4, 8), (1, 2, 4, 8), (False, True), (1, 2, 4, 8), (1, 2), (False, "each"), (False, True))
    for tp, pp, state, shards, microbatches, checkpointing, offload in choices:
        if tp * pp > 8:
            continue
        batch = 16 * tp * pp // 8
        try:
            plan = Plan(
                tensor_parallel_degree=tp,
                pipeline_parallel_degree=pp,
                shard_optimizer_state=state,
                sharded_data_parallel_degree=shards,
                microbatches=microbatches,
                active_microbatches=microbatches if pp > 1 else None,
                prescaled_batch=tp > 1,
                activation_checkpointing=checkpointing,
                offload_activations=offload,
                batch_size=batch,
                skip_tracing=shards > 1,
                delayed_parameter_initialization=shards > 1,
                fp16=True,
            )
            check_against(plan, NODE, model, job)
        except PlanError:
            continue
        if state and pp == 8:
            continue  # one rank a stage: nothing to shard over
        expected.add(plan)
    space = enumerate_plans(model, NODE, job)
    found = {space.plan(row) for row in range(len(space))}
    assert expected
    assert expected - found == set()


def test_pins_hold_and_reach_the_plan() -> None:
    job = Job(sequence_length=512, max_tokens_per_step=200_000)
    pins = {
        "tensor_parallel_degree": 2,
        "activation_checkpointing": "group_2",
        "microbatches": 4,
        "batch_size": 12,
        "offload_activations": True,
        "activation_loading_horizon": 2,
        "skip_tracing": True,
    }
    space = enumerate_plans(gpt(), NODE, job, pins)
    assert len(space) > 0
    for plan in sample(space):
        assert {name: getattr(plan, name) for name in pins} == pins


def test_families_the_library_does_not_distribute_get_no_tensor_parallelism() -> None:
    job = Job(sequence_length=512, max_tokens_per_step=50_000)
    own, other = (enumerate_plans(gpt(family=family), NODE, job) for family in ("gpt2", "llama"))
    assert set(own.layout.tensor_parallel_degree.tolist()) == {1, 2, 4, 8}
    assert set(other.layout.tensor_parallel_degree.tolist()) == {1}
    assert not any(plan.prescaled_batch for plan in sample(other))


@pytest.mark.parametrize("heads", [6, 5])
def test_degrees_divide_the_heads(heads: int) -> None:
    model = Model.from_shape(layers=4, hidden=heads * 64, heads=heads, vocab=1000, max_positions=512)
    space = enumerate_plans(model, NODE, Job(sequence_length=256, max_tokens_per_step=50_000))
    assert all(heads % degree == 0 for degree in space.layout.tensor_parallel_degree.tolist())


def test_too_many_plans_are_refused_in_one_sentence():
    cluster = Cluster("ml.p4d.24xlarge", 64)
    with pytest.raises(PlanError, match="more than 1,500,000 plans: set a global batch"):
        enumerate_plans(Model.from_parameters(175e9), cluster, Job(max_tokens_per_step=10**15))
