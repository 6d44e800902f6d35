"""Windows of a configuration are those of the model that transformers builds, which differ by family.

Measured with transformers 5.24 by the influence of one token in each layer, in training mode.
"""

import pytest

from smp_advisor.workload.families.decoders import windowed_layers
from smp_advisor.workload.settings import Settings, family

_SHAPE = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
_TYPES = ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"]
_TYPES += ["sliding_attention"]
_WITH_FLAG = {"use_sliding_window": True, "sliding_window": 64}
_CHUNKS = {"attention_chunk_size": 64}
_EVERY = [0, 1, 2, 3, 4, 5]

TABLE = (
    ("mistral", {"sliding_window": 64, "layer_types": _TYPES}, _EVERY),
    ("mixtral", {"sliding_window": 64, "layer_types": _TYPES}, _EVERY),
    ("phi3", {"sliding_window": 64, "layer_types": _TYPES}, _EVERY),
    ("qwen2", {"sliding_window": 64}, []),
    ("qwen2", _WITH_FLAG, []),
    ("qwen3", {**_WITH_FLAG, "max_window_layers": 2}, [2, 3, 4, 5]),
    ("qwen2_moe", {**_WITH_FLAG, "max_window_layers": 2}, [0]),
    ("qwen2_moe", _WITH_FLAG, [0, 2, 4]),
    ("qwen3_moe", {**_WITH_FLAG, "max_window_layers": 2}, _EVERY),
    ("qwen3_moe", {**_WITH_FLAG, "layer_types": _TYPES}, _EVERY),
    ("gemma2", {"sliding_window": 64, "layer_types": _TYPES}, [0, 3, 5]),
    ("gemma2", {"sliding_window": 64, "sliding_window_pattern": 3}, [0, 2, 4]),
    ("gemma3_text", {"sliding_window": 64, "sliding_window_pattern": 3}, [0, 1, 3, 4]),
    ("gpt_oss", {"sliding_window": 64, "sliding_window_pattern": 3}, [0, 2, 4]),
    ("olmo3", {"sliding_window": 64, "sliding_window_pattern": 3}, [0, 1, 2, 4, 5]),
    ("llama4_text", _CHUNKS, [0, 1, 2, 4, 5]),
    ("llama4_text", {**_CHUNKS, "layer_types": [t.replace("sliding", "chunked") for t in _TYPES]}, [0, 3, 5]),
)


def test_windows_are_those_of_the_built_model():
    for model_type, keys, layers in TABLE:
        settings = Settings({"model_type": model_type, **_SHAPE, **keys}, family(model_type), "a test")
        assert windowed_layers(settings) == layers, (model_type, keys)


@pytest.mark.torch
def test_the_table_is_that_of_the_models_that_transformers_builds():
    import torch
    import transformers

    sizes = {"intermediate_size": 64, "head_dim": 8, "num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
    sizes |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "intermediate_size_mlp": 64}
    for model_type, keys, layers in TABLE:
        config = transformers.AutoConfig.for_model(model_type, **_SHAPE, **sizes, **keys, pad_token_id=0)
        config._attn_implementation = "eager"
        model, windowed = transformers.AutoModelForCausalLM.from_config(config).train(), []

        def look(module, _, keywords, windowed=windowed):
            mask = keywords["attention_mask"]
            if bool(mask[0, 0, -1, 0] < 0 if mask.is_floating_point() else ~mask[0, 0, -1, 0]):
                windowed.append(module.layer_idx)

        for name, module in model.named_modules():
            if name.endswith("self_attn"):
                module.register_forward_pre_hook(look, with_kwargs=True)
        model(torch.ones(1, 160, dtype=torch.long), use_cache=False)
        assert windowed == layers, (model_type, keys)
