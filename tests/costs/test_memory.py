"""Memory, term by term, against the documented bytes and the published formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job
from tests.costs.shapes import P4D, gpt, row_30b

GIB = 2**30
STATE = ("parameters_gib", "gradients_gib", "optimizer_state_gib", "fp32_copies_gib")


@pytest.mark.parametrize(
    ("precision", "settings", "state"),
    [
        # Introduction to model parallelism: 2 parameters, 2 gradients, 8 optimizer state, 4 + 4 fp32 copies.
        ("fp16", {}, (2, 2, 8, 8)),
        ("fp32", {}, (4, 4, 8, 0)),
        ("fp32", {"optimizer": "sgd"}, (4, 4, 4, 0)),
        ("fp16", {"shard_optimizer_state": True}, (2, 2, 8 / 8, 8 / 8)),
        # Of the 20, the 4 of fp32 gradients are there in the optimizer's step only, when no activations are.
        *(
            (half, {"sharded_data_parallel_degree": n}, (2 / n, 2 / n, 8 / n, 4 / n))
            for half in ("fp16", "bf16")
            for n in (2, 8)
        ),
    ],
)
def test_bytes_per_parameter_of_the_documentation(
    precision: str, settings: dict[str, Any], state: tuple[float, ...]
) -> None:
    job = Job(sequence_length=128, precision=precision, optimizer=settings.get("optimizer", "adam"))
    own = {name: value for name, value in settings.items() if name != "optimizer"}
    model, plan = gpt(layers=4, hidden=1024, heads=16), Plan(fp16=precision == "fp16", bf16=precision == "bf16", **own)
    stage = estimate(model, Cluster(P4D, 1), job, plan).memory.stages[0]
    assert [getattr(stage, name) * GIB / model.parameter_count for name in STATE] == pytest.approx(state)


def test_the_step_of_sharded_data_parallelism_casts_gradients() -> None:
    model, cluster, job, _ = row_30b()
    plan = Plan(sharded_data_parallel_degree=8, batch_size=1, fp16=True, activation_checkpointing="each")
    stage = estimate(model, cluster, job, plan).memory.stages[0]
    transient = stage.activations_gib + stage.recomputation_gib + stage.logits_gib + stage.communication_gib
    assert stage.optimizer_step_gib == pytest.approx(4 / 8 * model.parameter_count / GIB - transient)


def test_tensor_parallelism_divides_layers_and_leaves_norms() -> None:
    model, cluster, job, plan = row_30b()
    stage = estimate(model, cluster, job, plan).memory.stages[0]
    parameters = stage.parameters_gib * GIB / 2
    block = model.groups[0].block
    positions = model.embedding_parameters - model.token_embedding_parameters
    replicated = 48 * block.replicated_parameters + positions + model.final_parameters
    assert parameters == pytest.approx((model.parameter_count - replicated) / 8 + replicated)
    # The 16 shardable bytes are divided over the 16 replicas.
    assert stage.optimizer_state_gib + stage.fp32_copies_gib == pytest.approx(16 / 16 * parameters / GIB)


@given(st.integers(1, 6), st.sampled_from([1, 2, 4, 8]), st.sampled_from([128, 512, 1024]))
def test_saved_activations_follow_korthikanti(batch: int, degree: int, sequence: int) -> None:
    # arXiv 2205.05198, eq. 2: s b h (10 + 24 / t + 5 a s / (h t)) bytes a layer.
    h, a, layers = 1024, 16, 4
    model = gpt(layers=layers, hidden=h, heads=a, activation="gelu")
    plan = Plan(tensor_parallel_degree=degree, prescaled_batch=degree > 1, batch_size=batch, fp16=True)
    value = estimate(model, Cluster(P4D, 1), Job(sequence_length=sequence), plan)
    per_layer = sequence * batch * h * (10 + 24 / degree + 5 * a * sequence / (h * degree))
    around = sequence * batch * h * 5  # embedding dropout mask, final norm and head input
    assert value.memory.stages[0].activations_gib * GIB == pytest.approx(layers * per_layer + around)


def test_fused_attention_keeps_no_scores() -> None:
    model = gpt(layers=4, hidden=1024, heads=16, activation="gelu")
    plan = Plan(batch_size=2, fp16=True)
    job = Job(sequence_length=1024, attention="fused")
    activations = estimate(model, Cluster(P4D, 1), job, plan).memory.stages[0].activations_gib * GIB
    tokens = 2 * 1024
    assert activations == pytest.approx(tokens * (4 * (34 * 1024 + 4 * 16) + 5 * 1024))


def test_checkpointing_keeps_inputs_and_one_unit() -> None:
    model, cluster, job, plan = row_30b()
    tokens, h = 32 * 512, 7168
    by_block = estimate(model, cluster, job, plan).memory.stages[0]
    block_bytes = tokens * h * (10 + 24 / 8 + 5 * 64 * 512 / (h * 8))
    assert by_block.activations_gib * GIB == pytest.approx(48 * 2 * tokens * h + 5 * tokens * h)
    # The loss is gone when the first block is recomputed: what the block needs beyond the logits counts.
    logits = (12 * tokens + 2 * h) * 50_000 / 8  # and the output weight's gradient before it is accumulated
    assert by_block.logits_gib * GIB == pytest.approx(logits)
    assert by_block.recomputation_gib * GIB == pytest.approx(block_bytes - logits)
    grouped = estimate(model, cluster, job, replace(plan, activation_checkpointing="group_4")).memory.stages[0]
    assert grouped.activations_gib * GIB == pytest.approx(12 * 2 * tokens * h + 5 * tokens * h)
    assert grouped.recomputation_gib * GIB == pytest.approx(4 * block_bytes - logits)
    contiguous = estimate(model, cluster, job, replace(plan, activation_checkpointing="contiguous")).memory.stages[0]
    assert contiguous.activations_gib * GIB == pytest.approx(2 * tokens * h + 5 * tokens * h)
    assert contiguous.recomputation_gib * GIB == pytest.approx(48 * block_bytes - logits)


def test_optimize_memory_divides_the_checkpointed_inputs() -> None:
    model, cluster, job, _ = row_30b()
    settings = {"tensor_parallel_degree": 8, "batch_size": 4, "fp16": True, "activation_checkpointing": "each"}
    speed = estimate(model, cluster, job, Plan(**settings)).memory.stages[0].activations_gib
    memory = estimate(model, cluster, job, Plan(**settings, optimize="memory")).memory.stages[0].activations_gib
    around = 5 * 4 * 8 * 512 * 7168 / GIB
    assert memory - around == pytest.approx((speed - around) / 8)


def test_a_batch_per_rank_is_processed_by_the_whole_group() -> None:
    model, cluster, job, plan = row_30b()
    per_rank = replace(plan, prescaled_batch=False, batch_size=4)
    assert estimate(model, cluster, job, per_rank).memory == estimate(model, cluster, job, plan).memory


def test_logits_divide_only_where_the_vocabulary_does() -> None:
    model, cluster, job, plan = row_30b()
    split = estimate(model, cluster, job, plan)
    undivided = estimate(gpt(vocab=50_257), cluster, job, plan)
    tokens = 32 * 512
    assert split.memory.stages[0].logits_gib * GIB == pytest.approx((12 * tokens + 2 * 7168) * 50_000 / 8)
    assert undivided.memory.stages[0].logits_gib * GIB == pytest.approx((12 * tokens + 2 * 7168) * 50_257)
    assert any("50,257 is not divisible" in sentence for sentence in undivided.assumptions)
    assert not any("not divisible" in sentence for sentence in split.assumptions)


def test_a_simple_pipeline_keeps_the_logits_of_every_microbatch() -> None:
    model = gpt(layers=8, hidden=1024, heads=16)
    plan = Plan(pipeline_parallel_degree=2, microbatches=4, active_microbatches=4, batch_size=8, fp16=True)
    cluster, job = Cluster(P4D, 1), Job(sequence_length=512)
    logits = 2 * 512 * 50_000
    interleaved = estimate(model, cluster, job, plan).memory.stages[-1].logits_gib
    simple = estimate(model, cluster, job, replace(plan, pipeline="simple")).memory.stages[-1].logits_gib
    weight = 2 * 1024 * 50_000
    assert interleaved * GIB == pytest.approx(12 * logits + weight)
    assert simple * GIB == pytest.approx((4 * 4 + 8) * logits + weight)


def test_one_replica_has_nobody_to_share_optimizer_state_with() -> None:
    model, job = gpt(layers=8, hidden=1024, heads=16, vocab=50_257), Job(sequence_length=512)
    plan = Plan(tensor_parallel_degree=8, prescaled_batch=True, batch_size=1, fp16=True)
    alone = estimate(model, Cluster(P4D, 1), job, plan).memory
    assert estimate(model, Cluster(P4D, 1), job, replace(plan, shard_optimizer_state=True)).memory == alone


def test_sizes_of_sharded_data_parallelism_take_memory() -> None:
    # A small vocabulary: with a large one the buffers are empty when memory peaks, at the loss.
    _, cluster, job, _ = row_30b()
    model = gpt(vocab=1_000)
    plan = Plan(sharded_data_parallel_degree=32, batch_size=1, fp16=True, activation_checkpointing="each")
    less = replace(plan, sdp_max_live_parameters=int(1e8), sdp_reduce_bucket_size=int(1e8))
    usual, large, small = (
        estimate(model, cluster, job, variant).memory.peak.communication_gib
        for variant in (plan, replace(plan, sdp_max_live_parameters=int(8e9)), less)
    )
    assert large - usual == pytest.approx(7e9 * 2 * (1 - 1 / 32) / GIB)
    assert usual - small == pytest.approx((9e8 * (1 - 1 / 32) + 4e8) * 2 / GIB)


def test_an_inferred_shape_widens_the_error() -> None:
    _, cluster, job, plan = row_30b()
    exact = gpt()
    inferred = replace(exact, origin="inferred", activation_band=0.25, note="inferred")
    sure, unsure = estimate(exact, cluster, job, plan), estimate(inferred, cluster, job, plan)
    assert sure.memory == unsure.memory
    assert unsure.memory_error_gib > 1.1 * sure.memory_error_gib
    assert unsure.fit_probability < sure.fit_probability


def test_stages_hold_every_parameter_and_the_tied_embedding_twice() -> None:
    model = gpt(layers=10, hidden=1024, heads=16)
    plan = Plan(pipeline_parallel_degree=4, microbatches=4, batch_size=4, fp16=True)
    value = estimate(model, Cluster(P4D, 1), Job(sequence_length=128), plan)
    # The head computes as much as four blocks, so the stage that holds it has the fewest.
    assert [stage.layers for stage in value.memory.stages] == [3, 3, 3, 1]
    parameters = sum(stage.parameters_gib for stage in value.memory.stages) * GIB / 2
    assert parameters == pytest.approx(model.parameter_count + model.token_embedding_parameters)
    assert [stage.logits_gib > 0 for stage in value.memory.stages] == [False, False, False, True]


def test_offloading_moves_inputs_of_waiting_microbatches_to_the_host() -> None:
    model = gpt(layers=8, hidden=2048, heads=16, vocab=1_000)
    settings = {"pipeline_parallel_degree": 2, "microbatches": 8, "active_microbatches": 4, "batch_size": 32}
    plan = Plan(**settings, fp16=True, activation_checkpointing="each")
    cluster, job = Cluster(P4D, 1), Job(sequence_length=1024)
    on_gpu = estimate(model, cluster, job, plan)
    moved = estimate(model, cluster, job, replace(plan, offload_activations=True, activation_loading_horizon=2))
    one_input = 2 * 4 * 1024 * 2048 / GIB
    gone = on_gpu.memory.stages[0].activations_gib - moved.memory.stages[0].activations_gib
    # 4 microbatches of 4 layers' inputs; the running one stays and 2 inputs are back.
    assert gone == pytest.approx((16 - 4 - 2) * one_input)
    assert moved.host_memory_gib_per_node == pytest.approx(8 * gone)
    assert on_gpu.host_memory_gib_per_node == 0


def test_at_the_loss_sharded_data_parallelism_has_gathered_the_head_alone() -> None:
    _, cluster, job, _ = row_30b()
    model = gpt(layers=8, vocab=400_000)
    plan = Plan(sharded_data_parallel_degree=32, batch_size=32, fp16=True, activation_checkpointing="each")
    stage = estimate(model, cluster, job, plan).memory.stages[0]
    around = 400_000 * 7168 + 2048 * 7168 + model.final_parameters
    assert stage.communication_gib <= 2 * around / GIB
    assert stage.recomputation_gib == 0


def test_the_parts_of_the_memory_add_up_to_what_decides() -> None:
    model, cluster, job, plan = row_30b()
    value = estimate(model, cluster, job, plan)
    assert value.memory.peak.total_gib == pytest.approx(value.needed_gib, rel=1e-12)
    assert value.memory.to_frame()["total_gib"].max() == pytest.approx(value.needed_gib, rel=1e-12)
    assert value.memory.peak.cached_gib > 1
    assert value.headroom_gib == value.usable_gpu_memory_gib - value.needed_gib
