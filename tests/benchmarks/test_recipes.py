"""The comparison with HyperPod recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recipes import compare, main, read_recipes

RECIPE = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
use_smp_model: True
model:
  model_type: llama_v3
  train_batch_size: 1
  tensor_model_parallel_degree: 1
  expert_model_parallel_degree: 1
  context_parallel_degree: 1
  activation_checkpointing: True
  delayed_param: True
  offload_activations: False
  shard_degree: 16
  fp8: True
  max_context_width: 8192
  num_hidden_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  intermediate_size: 14336
  vocab_size: 128256
  num_key_value_heads: 8
  do_finetune: False
  peft: {peft_type: null}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hf_llama3_8b_seq8k_gpu_p5x2_pretrain.yaml").write_text(RECIPE)
    (tmp_path / "lora.yaml").write_text(RECIPE.replace("peft_type: null", "peft_type: lora"))
    (tmp_path / "nemo.yaml").write_text(RECIPE.replace("use_smp_model: True", "use_smp_model: False"))
    return tmp_path


def test_recipes_that_train_all_parameters_with_smp_are_compared(folder: Path, capsys: pytest.CaptureFixture) -> None:
    (recipe,) = read_recipes(folder)
    assert recipe.name == "llama3_8b_seq8k_p5x2_pretrain"
    assert recipe.cluster.gpus == 16
    assert recipe.plan.hybrid_shard_degree == 16
    result = compare(recipe, "fixed")
    assert result.chosen.global_batch_size == result.aws.global_batch_size == 16
    assert result.share >= 0.98
    assert main(str(folder)) == 0
    assert "1 recipes, 2 comparisons, 0 with a condition that does not hold" in capsys.readouterr().out


def test_a_folder_without_recipes_fails(tmp_path: Path) -> None:
    assert main(str(tmp_path)) == 1
