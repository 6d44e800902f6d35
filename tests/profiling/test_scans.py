"""Recurrences are traced as kernels: no launch per token, and the packages are named."""

import pytest

import smp_advisor as smpa
from tests.rows import rows

CONFIGS = {
    "mamba": {"hidden_size": 2560, "state_size": 16, "num_hidden_layers": 2},
    "mamba2": {"hidden_size": 2560, "num_heads": 80, "n_groups": 1, "num_hidden_layers": 2},
    "rwkv": {"hidden_size": 2048, "attention_hidden_size": 2048},
    "recurrent_gemma": {"hidden_size": 2560, "intermediate_size": 15360, "num_hidden_layers": 6},
    "qwen3_next": {"hidden_size": 2048, "num_experts": 16, "num_hidden_layers": 2},
    "nemotron_h": {"hidden_size": 2048, "layers_block_type": ["mamba", "mlp", "attention", "mlp"]},
}
# A state space stays: the others have the same kernels, other operators in them, no products, or are mixtures.
IN_SUITE = rows(CONFIGS, *CONFIGS.keys() - {"mamba"})


@pytest.mark.torch
@pytest.mark.parametrize("family", IN_SUITE)
def test_a_recurrence_takes_the_time_of_a_kernel(family):
    config = {"model_type": family, "num_hidden_layers": 4, "vocab_size": 32_000, **CONFIGS[family]}
    advice = smpa.advise(config, "ml.p4d.24xlarge", sequence_length=2048)
    assert 0.05 < advice.estimate.mfu < 0.7
    assert advice.model.shape.vocab == 32_000
    assert "from its arithmetic and traffic" in advice.because
    if family == "qwen3_next":
        assert "flash-linear-attention" in advice.cell() + advice.script_cell()
