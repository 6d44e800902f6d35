"""Forward FLOPs of the blocks against those that PyTorch counts on transformers' own layers."""

import pytest

from smp_advisor.workload import Model
from tests.deferred import Deferred

pytestmark = pytest.mark.torch

torch = Deferred("torch")
transformers = Deferred("transformers")

LENGTH = 32
SMALL = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 100,
    "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "num_key_value_heads": 4, "moe_intermediate_size": 48, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
CASES = {
    "Llama": {},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2": {},
    "Qwen3": {"head_dim": 32},
    "Qwen3Moe": EXPERTS,
    "Gemma2": {"head_dim": 16},
    "Gemma3Text": {"head_dim": 16},
    "Phi3": {},
    "Olmo": {},
    "Olmo2": {},
    "GptOss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Llama4Text": {"head_dim": 16, "moe_layers": [], "intermediate_size_mlp": 160},
    "DeepseekV2": LATENT,
    "DeepseekV3": LATENT | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
}


def flops(prefix, keywords, layers):
    from torch.utils.flop_counter import FlopCounterMode

    settings = SMALL | keywords | {"num_hidden_layers": layers}
    config = getattr(transformers, f"{prefix}Config")(**settings, attn_implementation="eager")
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}Model")(config)
    for parameter in model.parameters():  # experts and routers are not initialized
        torch.nn.init.normal_(parameter, std=0.02)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, LENGTH, dtype=torch.long) + torch.arange(LENGTH) % 100, use_cache=False)
    return counter.get_total_flops()


@pytest.mark.parametrize("prefix", CASES)
def test_a_block_has_the_products_that_pytorch_counts(prefix):
    counted = (flops(prefix, CASES[prefix], 2) - flops(prefix, CASES[prefix], 1)) / LENGTH
    config = getattr(transformers, f"{prefix}Config")(**SMALL | CASES[prefix] | {"num_hidden_layers": 1})
    block = Model.from_config(config).groups[0].block
    scores = sum(4 * LENGTH * each.heads * each.head_dim for each in block.attentions)
    assert sum(product.flops_per_token for product in block.matmuls) + scores == pytest.approx(counted, rel=0.005)
