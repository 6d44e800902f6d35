"""Memory of single layouts and of blocks: what recipes, host memory and attention without a fused form change."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy_rows.state_bytes import deepspeed, pure
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.activations import block_saved_bytes
from smp_advisor.costs.constants import constant
from smp_advisor.costs.evaluate import memory_columns, seconds_columns
from smp_advisor.costs.memory import memory_error_bytes, stage_bytes
from smp_advisor.costs.world import World, stages
from smp_advisor.errors import JobError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.state_bytes import StateBytes, fully_sharded
from smp_advisor.workload import Adapter, Job, Model
from tests.costs.shapes import P4D, a100s, gpt

GIB = 2**30


def peak_gib(state: StateBytes, *, samples: int = 1, nodes: int = 1, **columns: Any) -> dict[str, float]:
    """GiB by category of a GPT of 1.3 B on p4d nodes."""
    model, job, cluster = gpt(layers=24, hidden=2048, heads=16), Job(sequence_length=512), Cluster(P4D, nodes)
    layout = Layout.of_columns(state, batch_samples=samples, **columns)
    world = World.of(model, cluster, job, layout)
    saved = tuple(block_saved_bytes(group.block, layout, world, job) for group in model.groups)
    by_category = stage_bytes(model, layout, world, stages(model, 1)[0], saved)
    return {name: float(values[0]) / GIB for name, values in by_category.items()}


def test_a_fresh_step_has_gradients_or_activations_at_its_peak() -> None:
    fresh = pure(Job(precision="bf16"))
    keeping = replace(fresh, gradients_persist=True)
    # One sample leaves little: the end of the backward pass is the peak, when no activations are left.
    persistent, end = peak_gib(keeping), peak_gib(fresh)
    assert persistent["gradients"] > persistent["activations"] + persistent["logits"] > 0
    assert (end["gradients"], end["activations"], end["logits"]) == (persistent["gradients"], 0, 0)
    # The unit that is recomputed last stands beside all gradients, however much larger the logits were.
    end = peak_gib(fresh, checkpoint_layers=1)
    assert end["gradients"] == persistent["gradients"]
    assert end["recomputation"] == pytest.approx(persistent["activations"] / 24, rel=0.1)
    # With many samples its start is, when there are no gradients yet.
    persistent, start = peak_gib(keeping, samples=16), peak_gib(fresh, samples=16)
    assert persistent["activations"] + persistent["logits"] > persistent["gradients"]
    assert start["gradients"] == 0
    assert all(start[name] == persistent[name] for name in ("activations", "logits"))


def test_with_accumulation_the_second_microbatch_finds_gradients() -> None:
    fresh = pure(Job(precision="bf16"))
    assert peak_gib(fresh, samples=32, microbatches=2)["gradients"] == pytest.approx(2 * 1.31e9 / GIB, rel=0.02)


def test_state_in_host_memory_leaves_the_gpu() -> None:
    state = fully_sharded(Job(precision="bf16"))
    columns = {"shard_level": 3, "prefetched_units": 2, "samples": 4}
    here, there = (peak_gib(state, **columns, offload_state=moved) for moved in (False, True))
    categories = ("parameters", "gradients", "optimizer_state", "fp32_copies", "optimizer_step")
    assert sum(here[name] for name in categories) == pytest.approx(16 / 8 * 1.31e9 / GIB, rel=0.02)
    assert sum(there[name] for name in categories) == 0
    # Blocks are gathered on the GPU all the same.
    assert there["communication"] == here["communication"] > 0

    model, job, cluster = gpt(layers=24, hidden=2048, heads=16), Job(sequence_length=512), Cluster(P4D, 1)
    layout = Layout.of_columns(state, rows=2, shard_level=3, batch_samples=4, offload_state=[False, True])
    host = memory_columns(model, cluster, job, layout).host_bytes_per_node
    assert host[0] == 0
    assert host[1] == pytest.approx(16 * 1.31e9, rel=0.02)
    parts = seconds_columns(model, cluster, job, layout)
    # The link to the host and its memory are slower than the GPU's.
    assert parts["optimizer_seconds"][1] > 3 * parts["optimizer_seconds"][0]
    assert parts["offload_seconds"][1] > parts["offload_seconds"][0] == 0


def test_zero_3_casts_gradients_in_its_step_and_zero_1_before() -> None:
    state = deepspeed(Job(precision="fp16"))
    by_level = [peak_gib(state, samples=8, shard_level=level)["fp32_copies"] for level in (1, 3)]
    assert by_level == pytest.approx([8 / 8 * 1.31e9 / GIB, 4 / 8 * 1.31e9 / GIB], rel=0.02)


def test_what_is_predicted_decides_which_errors_count() -> None:
    by = {name: np.array([value * GIB]) for name, value in peak_gib(pure(Job(precision="bf16")), samples=8).items()}
    shards = np.ones(1)
    allocated, reserved, total = (
        float(memory_error_bytes(by, shards, 0.0, of=name)[0]) for name in ("allocated", "reserved", "total")
    )
    assert allocated < reserved < total
    assert total == float(memory_error_bytes(by, shards, 0.0)[0])
    assert total**2 - reserved**2 == pytest.approx((constant("memory.error_context_gib") * GIB) ** 2)


BLOOM = {"model_type": "bloom", "hidden_size": 1024, "n_layer": 4, "n_head": 16, "vocab_size": 50_000}
FLAN_T5 = {
    "model_type": "t5", "d_model": 1024, "d_kv": 64, "num_heads": 16, "d_ff": 2816, "num_layers": 6,
    "num_decoder_layers": 6, "feed_forward_proj": "gated-gelu", "vocab_size": 32_128,
}  # fmt: skip


@pytest.mark.parametrize(
    "config", [BLOOM, FLAN_T5, {"model_type": "gpt_neo"}, {"model_type": "gptj", "n_embd": 1024, "n_layer": 2}]
)
def test_attention_without_a_fused_form_is_eager_whatever_is_asked_for(config: dict[str, Any]) -> None:
    # transformers: no _supports_sdpa; T5's came with release 5, which no container of the libraries has.
    model, cluster = Model.from_config(config), Cluster(P4D, 1)
    plan = Plan(library="fsdp", precision="bf16")
    eager, fused = (
        estimate(model, cluster, Job(sequence_length=1024, precision="bf16", attention=attention), plan)
        for attention in ("eager", "fused")
    )
    assert fused.memory == eager.memory
    assert fused.step_seconds == pytest.approx(eager.step_seconds)
    sentence_start = "Attention is counted as eager"
    assert any(sentence_start in sentence for sentence in fused.assumptions)
    assert not any(sentence_start in sentence for sentence in eager.assumptions)


def test_the_librarys_own_layers_have_a_fused_form_of_it() -> None:
    model, cluster = Model.from_config({"model_type": "gpt_neo"}), Cluster(P4D, 1)
    plan = Plan(tensor_parallel_degree=4, batch_size=4, fp16=True)
    eager, fused = (
        estimate(model, cluster, Job(sequence_length=2048, attention=attention), plan).memory.peak.activations_gib
        for attention in ("eager", "fused")
    )
    assert fused < eager / 2


def test_all_decoder_blocks_read_one_output_of_the_encoder() -> None:
    tokens, width, heads, layers = 4 * 512, 1024, 16, 6
    job = Job(sequence_length=512, precision="bf16", attention="eager")
    plan = Plan(library="fsdp", precision="bf16", batch_size=4, activation_checkpointing="each")
    stage = estimate(Model.from_config(FLAN_T5), Cluster(P4D, 1), job, plan).memory.stages[0]
    # An input for each of the 12 blocks, and the encoder's output once, not for each decoder block.
    inputs = (2 * layers + 1) * 2 * tokens * width
    # Position biases: of the encoder, and two of the decoder, with the gradients of the decoder's.
    biases = (3 + 2) * 2 * heads * tokens * 512
    around = 5 * tokens * width
    assert stage.activations_gib * GIB == pytest.approx(inputs + biases + around)


def test_a_loss_in_16_bits_keeps_no_fp32_copies() -> None:
    # BERT and T5 hand their logits to the loss as they are: the logit, its log-softmax and two gradients.
    plan = Plan(library="fsdp", precision="bf16", batch_size=8)
    job, logits = Job(sequence_length=512, precision="bf16", attention="fused"), 8 * 512 * 30_522
    bert = estimate(Model.from_config({"model_type": "bert"}), Cluster(P4D, 1), job, plan).memory.stages[0]
    assert bert.logits_gib * GIB == pytest.approx(8 * logits)
    # Under autocast the loss runs in fp32 whatever the code says.
    ddp_plan = Plan(library="ddp", precision="bf16", batch_size=8)
    cast = estimate(Model.from_config({"model_type": "bert"}), Cluster(P4D, 1), job, ddp_plan).memory.stages[0]
    assert cast.logits_gib * GIB == pytest.approx(16 * logits + 2 * 768 * 30_522)


def test_quantised_weights_are_gathered_as_they_are_stored() -> None:
    model = Model.from_parameters("7B", family="llama")
    plan = Plan(library="fsdp", precision="bf16", sharding_strategy="shard_grad_op", activation_checkpointing="each")
    gathered = {}
    for bits in (16, 4):
        adapter = Adapter(base_bits=bits)
        job = Job(sequence_length=128, precision="bf16", attention="fused", adapter=adapter)
        gathered[bits] = estimate(model, Cluster(P4D, 1), job, plan).memory.stages[0].communication_gib * GIB
    root = model.embedding_parameters + model.final_parameters + model.head.parameters
    blocks = model.parameter_count - root
    # All blocks stay gathered: 2 bytes a weight, or half a byte and its scale; and the largest product, unpacked.
    assert gathered[16] == pytest.approx(2 * (blocks + root), rel=0.02)
    assert gathered[4] == pytest.approx((0.5 + 1 / 16) * blocks + 2 * root + 2 * 4096 * 22016, rel=0.03)


def test_a_quantized_model_that_peft_casts_to_fp32_checkpoints_twice_the_bytes() -> None:
    model, cluster = Model.from_parameters("7B", family="llama"), Cluster("ml.g5.12xlarge", 1)
    plan = Plan(library="ddp", precision="bf16", batch_size=4, activation_checkpointing="each")

    def activations(**adapter: Any) -> float:
        job = Job(sequence_length=2048, precision="bf16", attention="fused", adapter=Adapter(base_bits=4, **adapter))
        return estimate(model, cluster, job, plan).memory.stages[0].activations_gib * GIB

    inputs = 2 * model.layer_count * model.shape.hidden * 4 * 2048
    assert activations(upcast=True) - activations() == pytest.approx(inputs, rel=0.02)
    with pytest.raises(JobError, match="base_bits"):
        Adapter(upcast=True)


def test_two_gpus_may_not_hold_a_quantized_70b_with_four_long_sequences_each() -> None:
    """Both runs of Hugging Face's Trainer with FSDP and PEFT ran out of memory; two sequences each took 43.5 GiB."""
    model, cluster = Model.from_name("llama-2-70b"), a100s(79.15, gpus=2)
    job = Job(
        sequence_length=4096, precision="bf16", attention="fused", stack="hf-flash-2", state_precision="16-bit",
        adapter=Adapter(rank=16, targets="attention", base_bits=4, double_quantization=True),
    )  # fmt: skip
    two, four = (
        estimate(model, cluster, job, Plan(library="fsdp", batch_size=batch, activation_checkpointing="each"))
        for batch in (2, 4)
    )
    allocated = two.needed_gib - two.memory.stages[0].context_gib
    assert allocated == pytest.approx(43.5, rel=0.1)
    assert four.fit_probability < 0.95


@given(
    st.sampled_from([("full_shard", "shard_grad_op"), ("hybrid_shard", "_hybrid_shard_zero2")]),
    st.sampled_from([1, 2, 16]),
    st.sampled_from([1, 4]),
    st.sampled_from([False, "each"]),
    st.sampled_from(["bf16", "fp32"]),
)
def test_parameters_that_stay_gathered_are_all_there_at_the_loss(
    strategies: tuple[str, str], samples: int, batches: int, checkpointing: bool | str, precision: str
) -> None:
    model, cluster = gpt(layers=24, hidden=2048, heads=16), Cluster(P4D, 2)
    job = Job(sequence_length=512, precision=precision)
    settings: dict[str, Any] = {
        "library": "fsdp", "batch_size": samples, "gradient_accumulation_steps": batches, "precision": precision,
        "activation_checkpointing": checkpointing,
    }  # fmt: skip
    freed, kept = (
        estimate(model, cluster, job, Plan(**settings, sharding_strategy=strategy)).memory.stages[0]
        for strategy in strategies
    )
    assert kept.communication_gib * GIB >= (2 if precision == "bf16" else 4) * model.parameter_count
    assert kept.communication_gib >= freed.communication_gib


@given(st.sampled_from([1, 8]), st.sampled_from([False, "each"]), st.sampled_from(["adam", "adafactor"]))
def test_sharding_over_more_gpus_never_takes_more_memory_of_one(
    samples: int, checkpointing: bool | str, optimizer: Any
) -> None:
    model = gpt(layers=8, hidden=2048, heads=16, vocab=50_257)
    job = Job(precision="bf16", attention="fused", optimizer=optimizer)
    plan = Plan(library="smp-v2", batch_size=samples, activation_checkpointing=checkpointing, hybrid_shard_degree=1)
    values = [
        estimate(model, Cluster(P4D, 2), job, replace(plan, hybrid_shard_degree=2**doublings)) for doublings in range(5)
    ]
    # Each kind of process group has NCCL buffers of its own; nothing else grows, from a GPU that holds everything on.
    slack = constant("memory.nccl_per_group_gib")
    for fewer, more in itertools.pairwise(values):
        assert more.needed_gib <= fewer.needed_gib + slack


def test_a_decoder_with_fewer_tokens_than_its_encoder_has_less_work() -> None:
    """FLAN-T5-XL with 512 and 129 tokens on 8 A100 takes at most 6.02 s, evaluations included (philschmid, 2023)."""
    config = FLAN_T5 | {"d_model": 2048, "num_heads": 32, "d_ff": 5120, "num_layers": 24, "num_decoder_layers": 24}
    model, plan = Model.from_config(config), Plan(library="fsdp", batch_size=72, activation_checkpointing="each")
    short, full, unset = (
        estimate(
            model,
            Cluster(P4D, 1),
            Job(sequence_length=512, decoder_length=length, precision="bf16", attention="eager"),
            plan,
        )
        for length in (129, 512, None)
    )
    assert 4.8 < short.step_seconds < 6.02 * 1.1
    assert short.tflops_per_gpu * short.step_seconds == pytest.approx(
        0.6 * full.tflops_per_gpu * full.step_seconds, rel=0.05
    )
    assert short.memory.peak.logits_gib == pytest.approx(full.memory.peak.logits_gib * 129 / 512, rel=0.1)
    assert unset.step_seconds == full.step_seconds
    assert any("set decoder_length" in sentence for sentence in unset.assumptions)
    assert any("exported script pads" in sentence for sentence in short.assumptions)
    assert not any("decoder" in sentence for sentence in full.assumptions)
