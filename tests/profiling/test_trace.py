"""The full-size trace: exact counts, truncation equal to the whole, unseen sizes, and equality with real steps."""

import pytest

from tests.deferred import Deferred, deferred
from tests.rows import rows

pytestmark = pytest.mark.torch

torch = Deferred("torch")
transformers = Deferred("transformers")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
stacks, ties = deferred("smp_advisor.profiling.structure", "stacks", "ties")
Settings = Deferred("smp_advisor.profiling.traced_steps", "Settings")
trace = Deferred("smp_advisor.profiling.trace", "trace")
PlainGPT, ResNet = deferred("tests.profiling.plain_models", "PlainGPT", "ResNet")

LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
MODELS = {
    "Llama 3 8B": lambda: transformers.LlamaConfig(**LLAMA, intermediate_size=14336, vocab_size=128256),
    "Mixtral": lambda: transformers.MixtralConfig(**LLAMA | {"num_hidden_layers": 4}, intermediate_size=14336),
    "ModernBERT": lambda: transformers.ModernBertConfig(num_hidden_layers=16),  # one layer of three sees all tokens
    "T5": lambda: transformers.T5Config(decoder_start_token_id=0),
    "ViT": lambda: transformers.ViTConfig(num_hidden_layers=12),
    "ResNet": lambda: on_meta(ResNet),
    "plain GPT": lambda: on_meta(PlainGPT),
}
# Read from PyTorch: sum(p.numel() for p in model.parameters()).
PARAMETERS = {"Llama 3 8B": 8_030_261_248, "Mixtral": 6_067_228_672, "ResNet": 60_192_808}


def on_meta(build):
    with torch.device("meta"):
        return build()


def profile(model, **settings):
    values = {"precision": "bf16", "attention": "fused", "sequence": 512} | settings
    return trace(read_model(model), Settings(**values)).profile


# A period of layers and several stages (a plain module) stay: equal layers are a period of one.
@pytest.mark.parametrize("name", rows(MODELS, "Llama 3 8B", "Mixtral", "T5", "ViT", "plain GPT"))
def test_two_repeats_of_each_block_say_what_the_whole_model_does(name):
    result = profile(MODELS[name]())
    if name in PARAMETERS:
        assert result.parameter_count == PARAMETERS[name]
    against_full = [agreement for agreement in result.agreements if agreement.against == "the full trace"]
    assert {agreement.figure for agreement in against_full} >= {"saved bytes", "forward FLOPs", "backward FLOPs"}
    for agreement in result.agreements:
        assert agreement.ratio == pytest.approx(1, abs=1e-4), agreement
    assert any("at batch 5" in agreement.against for agreement in result.agreements)


def test_a_gpt_block_keeps_what_the_paper_says():
    # Korthikanti et al. 2022: 34 sbh, and 5 a s / h more with eager attention; here with a 4-byte statistic a head.
    batch, sequence, width, heads = 2, 512, 512, 8
    model = on_meta(lambda: PlainGPT(width=width, heads=heads, vocab=1000))
    block = profile(model).blocks[1]
    elements = batch * sequence * width
    assert block.saved_bytes(batch, sequence) == pytest.approx(34 * elements + 4 * heads * batch * sequence, rel=1e-3)
    config = transformers.GPT2Config(n_embd=width, n_head=heads, n_layer=4, activation_function="gelu")
    eager = profile(config, attention="eager").blocks[1].saved_bytes(batch, sequence)
    assert eager == pytest.approx(34 * elements + 5 * heads * sequence * sequence * batch, rel=1e-3)


def test_experts_count_with_the_flops_that_a_token_uses():
    config = transformers.MixtralConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4
    )
    block = profile(config).blocks[1]
    experts = [product for product in block.products if product.experts == 8]
    tokens = 2 * 512
    assert sum(product.flops(2, 512) for product in experts) == 2 * tokens * 2 * 3 * 128 * 512  # top 2, three matrices


def test_the_users_module_is_left_as_it_is():
    model = PlainGPT()
    model.eval()
    before = {name: (p.data_ptr(), p.dtype, p.grad) for name, p in model.named_parameters()}
    profile(model)
    assert before == {name: (p.data_ptr(), p.dtype, p.grad) for name, p in model.named_parameters()}
    assert not model.training
    assert not model._forward_hooks
    assert "forward" not in vars(model.blocks[0])


def test_tied_parameters_and_dense_layers_before_experts():
    assert ties(PlainGPT()) == (("wte.weight", "head.weight"),)
    config = transformers.DeepseekV2Config(
        num_hidden_layers=5, first_k_dense_replace=1, hidden_size=64, num_attention_heads=4, num_key_value_heads=4
    )
    with torch.device("meta"):
        (stack,) = stacks(transformers.DeepseekV2ForCausalLM(config))
    assert (stack.prefix, stack.period, stack.repeats) == (1, 1, 4)
