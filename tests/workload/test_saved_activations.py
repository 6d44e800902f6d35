"""The blocks' saved activations against what autograd keeps of transformers' own layers."""

import tomllib
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from smp_advisor.workload import Model
from smp_advisor.workload.block import shortened
from tests.deferred import Deferred

pytestmark = pytest.mark.torch

torch = Deferred("torch")
transformers = Deferred("transformers")
saved_bytes = Deferred("tests.workload.saved_trace", "saved_bytes")

CONFIGURATIONS = tomllib.loads(Path(__file__).with_name("configurations.toml").read_text("utf-8"))
CASES, SHAPES, PRODUCTS = (CONFIGURATIONS[name] for name in ("saved", "shapes", "products"))
BATCH = 2


def text(length):
    return {"input_ids": torch.zeros(BATCH, length, dtype=torch.long)}


def text_pair(length, share=1.0):
    return text(length) | {"decoder_input_ids": torch.zeros(BATCH, int(share * length), dtype=torch.long)}


# Their scores grow with the square of the length and fall out of the comparison.
ONLY_EAGER = {"Gemma 2", "gpt-oss", "BLOOM", "GPT-J"}


def builder(name, *, attention=""):
    """Class of a case, and its configuration by the number of layers."""
    class_name, shape, own = CASES[name]
    keywords = {key: None if value == "None" else value for key, value in (SHAPES.get(shape, {}) | own).items()}
    cls = getattr(transformers, class_name)
    depth = {"GPT2": "n_layer", "GPTJ": "n_layer", "Bloom": "n_layer", "T5Enc": "num_layers"}
    key = next((key for start, key in depth.items() if class_name.startswith(start)), "num_hidden_layers")

    def configuration(layers):
        config = cls.config_class(**keywords, **{key: layers}, use_cache=False)
        config._attn_implementation = attention or ("eager" if name in ONLY_EAGER else "sdpa")
        return config

    return cls, configuration


def measured_per_token(build, inputs, lengths):
    """Bytes a token that one more block keeps, what grows with the square of the length left out."""
    short, long = lengths
    one, two = (saved_bytes(lambda of=layers: build(of), inputs, lengths, torch.bfloat16) for layers in (1, 2))
    growth = dict(zip(lengths, np.subtract(two, one), strict=True))
    # growth = linear s + square s²
    return (growth[short] * long / short - growth[long] * short / long) / (long - short) / BATCH


def expected_per_token(block, attention):
    """What the cost model takes for bf16 without the scores: the block's saved tensors and the fused statistics."""
    saved = block.saved
    elements = saved.split_elements + saved.replicated_elements + saved.unfused_split_elements
    statistics = sum(4 * a.heads for a in block.attentions) if attention == "sdpa" else 0
    elements += 0 if attention == "sdpa" else saved.eager_split_elements
    return 2 * elements + saved.split_bytes + saved.replicated_bytes + saved.half_replicated_bytes + statistics


@pytest.mark.parametrize("name", CASES)
def test_a_block_keeps_what_autograd_keeps(name):
    cls, configuration = builder(name)
    attention = "eager" if name in ONLY_EAGER else "sdpa"
    block = Model.from_config(configuration(1)).groups[0].block
    measured = measured_per_token(lambda layers: cls(configuration(layers)), text, (128, 256))
    assert expected_per_token(block, attention) == pytest.approx(measured, rel=0.02)


def _frozen(model):
    """Only the token table learns, so that gradients pass through the blocks without being asked of their weights."""
    model.requires_grad_(requires_grad=False)
    model.get_input_embeddings().requires_grad_()
    return model


@pytest.mark.parametrize(
    "name", ["GPT-2", "Llama", "GPT-NeoX", "BERT", "OPT", "T5 encoder", "Mixtral", "Qwen2 MoE", "Gemma"]
)
def test_a_frozen_block_keeps_what_autograd_keeps(name):
    cls, configuration = builder(name)
    block = Model.from_config(configuration(1)).groups[0].block
    saved = block.saved
    frozen = expected_per_token(block, "sdpa") - 2 * (saved.weight_split_elements + saved.weight_replicated_elements)
    measured = measured_per_token(lambda layers: _frozen(cls(configuration(layers))), text, (128, 256))
    assert frozen == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("name", ["GPT-2 with gelu_new", "Llama", "BERT"])
@pytest.mark.parametrize("attention", ["eager", "fused"])
def test_under_autocast_a_block_keeps_what_autograd_keeps(name, attention):
    from torch._subclasses.fake_tensor import FakeTensorMode

    from smp_advisor.profiling.step import measure_step

    cls, configuration = builder(name, attention="eager" if attention == "eager" else "sdpa")

    def traced_bytes(layers):
        settings = {"precision": "amp", "attention": attention, "backward": False}
        with FakeTensorMode(), patch.object(transformers.PreTrainedModel, "initialize_weights", lambda _: None):
            model = cls(configuration(layers)).train()
            return [measure_step(model, text(length), **settings).saved_bytes for length in lengths]

    # The casts of the weights, what grows with the length, and the scores.
    lengths = (128, 256, 512)
    growth = np.subtract(traced_bytes(2), traced_bytes(1)) / BATCH
    _, per_token, per_pair = np.polynomial.polynomial.polyfit(lengths, growth, 2)
    block = Model.from_config(configuration(1)).groups[0].block
    saved = block.saved
    elements = saved.split_elements + saved.replicated_elements
    if attention == "eager":
        elements += saved.eager_split_elements
    expected = (
        2 * elements
        + 4 * saved.unfused_split_elements
        + saved.split_bytes
        + saved.replicated_bytes
        + saved.half_replicated_bytes
        + saved.autocast_replicated_bytes
    )
    heads, dropout = block.attentions[0].heads, block.attentions[0].dropout
    if attention == "fused":
        expected += 4 * heads
    assert expected == pytest.approx(per_token, rel=0.04)
    scores = (7 if dropout else 6) if attention == "eager" else 0
    assert per_pair == pytest.approx(scores * heads, rel=0.01, abs=0.01)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_t5_decoder_block_keeps_what_autograd_keeps(share):
    def configuration(layers):
        return transformers.T5Config(
            d_model=512, d_ff=2048, num_heads=8, num_layers=1, num_decoder_layers=layers, use_cache=False
        )

    block = shortened(Model.from_config(configuration(1)).groups[1].block, share)
    measured = measured_per_token(
        lambda layers: transformers.T5Model(configuration(layers)), lambda n: text_pair(n, share), (128, 256)
    )
    assert expected_per_token(block, "sdpa") == pytest.approx(measured, rel=0.02)


def test_a_vit_block_keeps_what_autograd_keeps():
    def build(layers):
        return transformers.ViTModel(
            transformers.ViTConfig(**SHAPES["DENSE"], num_hidden_layers=layers, hidden_dropout_prob=0.1)
        )

    def image(_):
        return {"pixel_values": torch.zeros(BATCH, 3, 224, 224, dtype=torch.bfloat16)}

    config = transformers.ViTConfig(**SHAPES["DENSE"], hidden_dropout_prob=0.1)
    model = Model.from_config(config)
    one, two = (saved_bytes(lambda of=layers: build(of), image, [0], torch.bfloat16) for layers in (1, 2))
    measured = (two[0] - one[0]) / BATCH / model.fixed_sequence_length
    assert expected_per_token(model.groups[0].block, "sdpa") == pytest.approx(measured, rel=0.02)


EAGER = ["GPT-2", "GPT-2 without dropout", "Llama", "Llama with dropout", "Falcon 7B", "BERT", "OPT", "GPT-NeoX"]
EAGER += ["GPT-J", "BLOOM"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "bfloat16") for name in EAGER), *((name, "float32") for name in ("GPT-2", "Llama", "Falcon 7B"))],
)
def test_eager_attention_keeps_of_a_score_what_autograd_keeps(name, dtype):
    cls, configuration = builder(name, attention="eager")

    lengths = (128, 256, 512)
    one, two = (
        saved_bytes(lambda of=layers: cls(configuration(of)), text, lengths, getattr(torch, dtype)) for layers in (1, 2)
    )
    _, _, per_pair = np.polynomial.polynomial.polyfit(lengths, np.subtract(two, one) / BATCH, 2)
    attention = Model.from_config(configuration(1)).groups[0].block.attentions[0]
    expected = attention.heads * attention.eager_score_bytes(getattr(torch, dtype).itemsize)
    assert expected == pytest.approx(per_pair, rel=0.02)


LENGTH = 32


def flops(prefix, layers):
    from torch.utils.flop_counter import FlopCounterMode

    settings = PRODUCTS["smallest"] | PRODUCTS["of"][prefix] | {"num_hidden_layers": layers}
    config = getattr(transformers, f"{prefix}Config")(**settings, attn_implementation="eager")
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}Model")(config)
    for parameter in model.parameters():  # experts and routers are not initialized
        torch.nn.init.normal_(parameter, std=0.02)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, LENGTH, dtype=torch.long) + torch.arange(LENGTH) % 100, use_cache=False)
    return counter.get_total_flops()


@pytest.mark.parametrize("prefix", PRODUCTS["of"])
def test_a_block_has_the_products_that_pytorch_counts(prefix):
    counted = (flops(prefix, 2) - flops(prefix, 1)) / LENGTH
    settings = PRODUCTS["smallest"] | PRODUCTS["of"][prefix] | {"num_hidden_layers": 1}
    config = getattr(transformers, f"{prefix}Config")(**settings)
    block = Model.from_config(config).groups[0].block
    scores = sum(4 * LENGTH * each.heads * each.head_dim for each in block.attentions)
    assert sum(product.flops_per_token for product in block.matmuls) + scores == pytest.approx(counted, rel=0.005)
