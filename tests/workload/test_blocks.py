"""What blocks hold: parameters under tensor parallelism, products, saved activations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.errors import ModelError
from smp_advisor.workload import Model

GPT2_XL = Model.from_shape(layers=48, hidden=1600, heads=25, vocab=50257, max_positions=1024)


def half_precision_bytes(block):
    saved = block.saved
    split = 2 * (saved.split_elements + saved.unfused_split_elements) + saved.split_bytes
    replicated = 2 * saved.replicated_elements + saved.replicated_bytes + saved.half_replicated_bytes
    return split, replicated


@given(st.integers(1, 64).map(lambda k: 64 * k))
def test_a_gpt_block_keeps_34_bytes_a_value_of_which_10_are_replicated(hidden):
    block = Model.from_shape(layers=1, hidden=hidden, heads=hidden // 64, activation="gelu").groups[0].block
    assert half_precision_bytes(block) == (24 * hidden, 10 * hidden)


def test_what_is_replicated_and_what_is_divided():
    block = GPT2_XL.groups[0].block
    assert block.parameters == 12 * 1600**2 + 13 * 1600
    assert block.replicated_parameters == (4 + 2) * 1600
    assert block.split_parameters == 12 * 1600**2 + 7 * 1600

    block = Model.from_name("mixtral-8x7b").groups[0].block
    assert block.replicated_parameters == 8 * 4096 + 2 * 4096
    experts = {matmul.name: (matmul.experts, matmul.weights_per_token) for matmul in block.matmuls}
    assert experts["expert up and gate"] == experts["expert down"] == (8, 2)
    assert experts["router"] == (1, 1)


@pytest.mark.parametrize(
    ("model_type", "all_reduces"),
    [("gpt2", [2]), ("gptj", [1]), ("falcon", [1]), ("gpt_neox", [2]), ("llama", [2]), ("t5", [2, 3])],
)
def test_all_reduces_of_a_forward_pass(model_type, all_reduces):
    model = Model.from_config({"model_type": model_type})
    assert [group.block.all_reduces for group in model.groups] == all_reduces


def test_blocks_of_other_forms():
    model = Model.from_config({"model_type": "t5", "num_layers": 6, "num_decoder_layers": 4})
    encoder, decoder = model.groups
    assert (encoder.count, decoder.count, model.layer_count) == (6, 4, 10)
    assert (encoder.block.input_tensors, decoder.block.input_tensors) == (1, 2)
    assert [attention.causal for attention in decoder.block.attentions] == [True, False]
    assert not encoder.block.attentions[0].causal

    model = Model.from_config({"model_type": "vit", "patch_size": 14})
    assert model.sequence_length(512) == 257
    assert model.shape.vocab == 0
    assert not model.head.per_token

    assert Model.from_config({"model_type": "mistral"}).groups[0].block.attentions[0].window == 4096
    assert Model.from_config({"model_type": "llama"}).groups[0].block.attentions[0].window is None


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"layers": 2, "hidden": 10, "heads": 3}, "must be a multiple of the 3 attention heads"),
        ({"layers": 0, "hidden": 8, "heads": 2}, "layers must be a whole number"),
        ({"layers": 2, "hidden": 8.0, "heads": 2}, "hidden must be a whole number"),
        ({"layers": 2, "hidden": 8, "heads": 2, "kv_heads": 1}, "no kv_heads; the fields of its shape are layers"),
        ({"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 3, "family": "llama"}, "must divide the 4 attention heads"),
        ({"layers": 2, "hidden": 8, "heads": 2, "family": "gtp"}, "supported are gpt2, gptj"),
        ({"layers": 2, "hidden": 8, "heads": 2, "tied": "yes"}, "tie_word_embeddings must be true or false"),
        ({"layers": 20_000, "hidden": 8, "heads": 2}, "at most 10,000"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(keywords, message):
    with pytest.raises(ModelError, match=message):
        Model.from_shape(**keywords)
