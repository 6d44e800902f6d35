"""Spaces of the libraries: every plan that the schema allows, each valid, none twice, and costed alike."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.costs.evaluate import estimate, memory_columns, seconds_columns
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.layout import COLUMNS, layout_of
from smp_advisor.libraries.space import Space, enumerate_plans
from smp_advisor.libraries.validation import check_against
from smp_advisor.workload import Job, Model

NODES = Cluster("ml.p4d.24xlarge", 2)
LLAMA = Model.from_shape(layers=6, hidden=512, heads=8, kv_heads=4, ffn=1024, vocab=32_000, family="llama")
MIXTRAL = Model.from_shape(
    layers=4, hidden=512, heads=8, kv_heads=4, ffn=1024, vocab=32_000, family="mixtral", experts=8, experts_per_token=2
)
GPT = Model.from_shape(layers=6, hidden=512, heads=8, vocab=50_000, max_positions=2048, family="gpt2")
CASES = [
    ("smp-v2", LLAMA, "bf16"),
    ("smp-v2", MIXTRAL, "bf16"),
    ("smp-v2", GPT, "fp16"),
    ("fsdp", GPT, "bf16"),
    ("ddp", GPT, "fp32"),
    ("training-compiler", GPT, "fp16"),
    ("smp-v1-tensorflow", GPT, "fp32"),
    *(("smp-v1", GPT, precision) for precision in ("fp16", "bf16", "fp32")),
    ("smp-v1", LLAMA, "fp16"),
]


def some(space: Space, most: int = 150) -> dict[int, Plan]:
    rows = np.unique(np.linspace(0, len(space) - 1, min(most, len(space))).astype(int))
    return {int(row): space.plan(int(row)) for row in rows}


@pytest.mark.parametrize(("library", "model", "precision"), CASES)
@pytest.mark.parametrize("batch", [None, 96])
def test_every_plan_is_valid_and_its_columns_are_its_own(library, model, precision, batch) -> None:
    job = Job(sequence_length=256, precision=precision, global_batch_size=batch, max_tokens_per_step=100_000)
    space = enumerate_plans(model, NODES, job, library=library)
    assert len(space) > 0
    plans = some(space)
    for plan in plans.values():
        assert plan.library == library
        check_against(plan, NODES, model, job)
        assert global_batch_size(plan, NODES) * 256 <= 100_000
        assert plan.batch_size % plan.microbatches == 0
        if batch is not None:
            assert global_batch_size(plan, NODES) == batch
    # The row that was scored is the plan that is shown: translated back it is the same row.
    rows, back = space.layout.take(np.array(list(plans))), layout_of(list(plans.values()), job, NODES)
    assert rows.state_bytes == back.state_bytes
    for name in set(COLUMNS) - {"shard_degree"}:  # 0 stands for the whole group
        one, other = (np.asarray(getattr(each, name)) for each in (rows, back))
        differ = one != other
        if name == "active_microbatches":  # without stages there are none
            differ &= rows.pipeline_parallel_degree > 1
        assert not differ.any(), name


@pytest.mark.parametrize(("library", "model", "precision"), CASES)
def test_numbers_and_columns_have_the_same_costs(library, model, precision) -> None:
    """One formula computes one plan from numbers and all plans from columns, in any order of the plans."""
    job = Job(sequence_length=256, precision=precision, max_tokens_per_step=100_000)
    space = enumerate_plans(model, NODES, job, library=library)
    rows = np.random.default_rng(0).permutation(len(space))[:200]
    layout = space.layout.take(rows)
    memory, seconds = memory_columns(model, NODES, job, layout), seconds_columns(model, NODES, job, layout)
    for position in range(0, len(rows), 5):
        value = estimate(model, NODES, job, space.plan(int(rows[position])))
        assert value.needed_gib * 2**30 == pytest.approx(float(memory.needed_bytes[position]), rel=1e-12)
        assert value.memory.peak.total_gib * 2**30 == pytest.approx(float(memory.needed_bytes[position]), rel=1e-12)
        for name, column in seconds.items():
            assert getattr(value.time, name) == pytest.approx(float(column[position]), rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize(("library", "model", "precision"), CASES)
def test_no_plan_is_listed_twice(library, model, precision) -> None:
    job = Job(sequence_length=256, precision=precision, max_tokens_per_step=50_000)
    layout = enumerate_plans(model, NODES, job, library=library).layout
    rows = np.stack([getattr(layout, name).astype(np.int64) for name in COLUMNS], axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_techniques_follow_family_and_version() -> None:
    job = Job(sequence_length=256, precision="bf16", max_tokens_per_step=50_000)

    def degrees(model: Model, technique: str, **pins: object) -> set[int]:
        layout = enumerate_plans(model, NODES, job, pins, library="smp-v2").layout
        return set(getattr(layout, f"{technique}_degree").tolist())

    assert degrees(LLAMA, "tensor_parallel") == {1, 2, 4}
    assert degrees(LLAMA, "context_parallel") == {1, 2, 4, 8, 16}
    assert degrees(LLAMA, "context_parallel", version="2.4.0") == {1}
    assert degrees(LLAMA, "expert_parallel") == {1}
    assert degrees(MIXTRAL, "expert_parallel") == {1, 2, 4, 8}
    assert degrees(MIXTRAL, "context_parallel") == {1}
    assert degrees(GPT, "tensor_parallel") == {1}


NODE = Cluster("ml.p4d.24xlarge", 1)


def gpt(layers: int = 6, heads: int = 8, family: str = "gpt2") -> Model:
    return Model.from_shape(layers=layers, hidden=512, heads=heads, vocab=50_000, max_positions=2048, family=family)


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


def test_pins_hold_and_undistributed_families_have_no_tensor_parallelism() -> None:
    job = Job(sequence_length=256, precision="bf16", max_tokens_per_step=200_000)
    pins = {"hybrid_shard_degree": 4, "batch_size": 3, "offload_activations": True, "random_seed": 7}
    space = enumerate_plans(LLAMA, NODES, job, pins, library="smp-v2")
    for plan in some(space).values():
        assert {name: getattr(plan, name) for name in pins} == pins

    job = Job(sequence_length=512, max_tokens_per_step=50_000)
    own, other = (enumerate_plans(gpt(family=family), NODE, job) for family in ("gpt2", "llama"))
    assert set(own.layout.tensor_parallel_degree.tolist()) == {1, 2, 4, 8}
    assert set(other.layout.tensor_parallel_degree.tolist()) == {1}
    assert not any(plan.prescaled_batch for plan in some(other).values())

    cluster = Cluster("ml.p4d.24xlarge", 64)
    with pytest.raises(PlanError, match="more than 1,500,000 plans: set a global batch"):
        enumerate_plans(Model.from_parameters(175e9), cluster, Job(max_tokens_per_step=10**15))
