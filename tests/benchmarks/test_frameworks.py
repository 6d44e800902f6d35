"""What the accuracy benchmark knows of training libraries and of plans that no other column tells."""

import json

import pytest

from benchmarks.accuracy_rows.command import main
from benchmarks.accuracy_rows.judge import figures
from benchmarks.accuracy_rows.plans import run_of
from benchmarks.accuracy_rows.predict import memory
from tests.benchmarks.rows import MEASURED, row, score, table

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


def test_logits_by_the_loss_of_the_library():
    sharded = {"attention_class": "flash", "shard_class": "zero3", "precision_class": "bf16-mixed"}
    found = [
        run_of(row(framework=name, **sharded)).layout.state_bytes.logit_bytes for name in ("", "Composer", "torchtitan")
    ]
    assert found == [6, 4, 12]


def test_state_in_host_memory():
    sharded = {"shard_class": "zero3", "tp": 1, "pp": 1, "dp": 16, "precision_class": "bf16-mixed"}
    here, there = (run_of(row(**sharded, offload=text)).layout for text in ("none", "params+grads CPU"))
    assert not here.offload_state[0]
    assert there.offload_state[0]
    # Without full sharding nothing says that parameters leave the GPU.
    assert not run_of(row(offload="params+grads CPU")).layout.offload_state[0]
    assert not there.offload_activations[0]


def test_checkpoints_of_fully_sharded_tensor_parallel_runs_are_divided():
    sharded = {"shard_class": "zero3", "tp": 4, "pp": 1, "dp": 4, "shard_degree": 4}
    assert run_of(row(**sharded)).layout.split_checkpoints[0]
    assert not run_of(row()).layout.split_checkpoints[0]


def test_intervals_are_judged_by_rows_that_did_not_set_them(tmp_path):
    rows = [MEASURED | {"memory_gib_per_gpu": str(20 + n)} for n in range(12)]
    result = figures(score(tmp_path, rows))["intervals"]["memory"]["left_out"]
    assert result["cases"] == 12
    # Each fold's interval is that of the other rows, which hold all but the farthest ones.
    assert 0.7 < result["share"] < 1
    assert figures(score(tmp_path, rows[:3]))["intervals"]["memory"]["left_out"]["share"] is None


def test_what_the_library_s_name_adds_is_told(tmp_path, capsys):
    path = table(tmp_path, "m.csv", [MEASURED | LORA | {"mem_class": "allocated", "framework": "litgpt"}])
    assert main([str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["extra"]["memory_allocated_framework_unread"]["bias"] < result["memory_allocated"]["bias"]
