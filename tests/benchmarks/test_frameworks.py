"""What the accuracy benchmark knows of training libraries and of plans that no other column tells."""

import pytest

from benchmarks.accuracy_rows.plans import run_of
from benchmarks.accuracy_rows.predict import memory
from benchmarks.accuracy_rows.stacks import stack_of_row
from benchmarks.accuracy_rows.table import Row
from smp_advisor import stacks
from tests.benchmarks.rows import row

LORA = {
    "family": "lora", "params_b": "6.738", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008,
    "vocab": 32000, "tied_embeddings": 0, "precision_class": "bf16-pure", "shard_class": "zero3", "gpus": 4,
    "nodes": 1, "tp": 1, "pp": 1, "dp": 4, "num_microbatches": "", "global_batch": "", "optimizer": "AdamW",
}  # fmt: skip


def allocated_gib(**changes):
    return memory(run_of(row(**LORA | changes))).allocated_gib


def test_gradients_that_stay_whole_while_they_accumulate():
    whole, plain = 2 * 6.738e9 / 2**30, {"recompute_class": "none"}
    more = allocated_gib(framework="litgpt", **plain) - allocated_gib(framework="other", **plain)
    assert more == pytest.approx(whole, rel=0.01)
    # A row that says it takes one microbatch a step accumulates nothing.
    alone = plain | {"num_microbatches": 1}
    assert allocated_gib(framework="litgpt", **alone) == allocated_gib(framework="other", **alone)


def test_without_an_adapter_only_the_trained_gradients_are_whole():
    full = {"family": "llama", "precision_class": "bf16-pure"}
    more = allocated_gib(framework="litgpt", **full) - allocated_gib(framework="other", **full)
    # A step that accumulates starts with gradients, which those of one microbatch do not.
    assert more == pytest.approx(2 * 6.738e9 / 2**30 * (1 + 1 / 4), rel=0.15)


def test_a_recipe_that_names_no_optimizer_is_its_library_s():
    alone = {
        "family": "llama", "shard_class": "none", "gpus": 1, "dp": 1, "framework": "torchtune",
        "attention_class": "flash",
    }  # fmt: skip
    left_open = allocated_gib(**alone, optimizer="AdamW variant per recipe")
    parameters = 2 * 6.738e9 / 2**30
    # Its state is paged and its gradients are used up in the backward pass.
    assert parameters < left_open < 1.3 * parameters
    assert allocated_gib(**alone, optimizer="AdamW (bf16 states)") > 3.9 * parameters


def test_state_in_host_memory():
    sharded = {"shard_class": "zero3", "tp": 1, "pp": 1, "dp": 16, "precision_class": "bf16-mixed"}
    here, there = (run_of(row(**sharded, offload=text)).layout for text in ("none", "params+grads CPU"))
    assert not here.offload_state[0]
    assert there.offload_state[0]
    # Without full sharding nothing says that parameters leave the GPU.
    assert not run_of(row(offload="params+grads CPU")).layout.offload_state[0]
    assert not there.offload_activations[0]


@pytest.mark.parametrize(
    ("framework", "attention", "kind", "expected"),
    [
        ("SageMaker SMP v1", "fused softmax", "eager", "smp-v1-distributed"),
        ("torchtitan FSDP2", "sdpa-flash", "flash", "torch-compile"),
        ("HF Trainer DDP", "eager (EsmSelfAttention)", "eager", "hf-eager"),
        ("PyTorch FSDP1, Hugging Face model", "sdpa", "flash", "hf-sdpa"),
        ("HF Trainer", "flash_attention_2", "flash", "hf-flash-2"),
        ("a library of next year", "", "flash-assumed", "hf-sdpa"),
    ],
)
def test_the_framework_decides_then_the_attention(framework, attention, kind, expected):
    row = Row({"framework": framework, "attention": attention, "attention_class": kind})
    assert stack_of_row(row) == expected
    assert expected in stacks()
