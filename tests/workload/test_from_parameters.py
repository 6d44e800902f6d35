"""Shapes inferred from a parameter count."""

import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.errors import ModelError
from smp_advisor.workload import Model
from smp_advisor.workload import from_count as inference
from smp_advisor.workload.from_count import published_shapes


@pytest.mark.parametrize(
    ("count", "name", "layers", "hidden", "heads"),
    [
        ("175B", "GPT-3 175B", 96, 12288, 96),
        ("20B", "GPT-NeoX-20B", 44, 6144, 64),
        ("30B", "OPT-30B", 48, 7168, 56),
        ("1.3B", "GPT-3 XL", 24, 2048, 16),
        ("530B", "Megatron-LM 529.6B", 105, 20480, 128),
    ],
)
def test_a_published_size_takes_the_published_shape_and_its_name(count, name, layers, hidden, heads):
    model = Model.from_parameters(count)
    assert (model.name, model.shape.layers, model.shape.hidden, model.shape.heads) == (name, layers, hidden, heads)
    assert name in model.note
    assert model.origin == "inferred"


@pytest.mark.parametrize(
    ("count", "layers", "hidden"),
    [("10B", (31, 48), (4096, 5120)), ("60B", (52, 64), (8192, 10240)), ("100B", (60, 80), (10240, 12288))],
)
def test_other_sizes_lie_between_published_models(count, layers, hidden):
    shape = Model.from_parameters(count).shape
    assert layers[0] <= shape.layers <= layers[1]
    assert hidden[0] <= shape.hidden <= hidden[1]


def test_an_inferred_model_says_so_with_its_error_band():
    model = Model.from_parameters("10B")
    assert model.origin == "inferred"
    assert "inferred from 10 B" in model.note
    assert "±25 %" in model.note
    assert model.summary == (
        "GPT-2 shape, 48 layers, hidden 4096, 32 heads, vocabulary 50,304; 9.88 B parameters (inferred from 10 B)"
    )


@given(st.floats(5e8, 2e12), st.sampled_from(["gpt2", "llama"]))
def test_the_model_has_the_size_asked_for_and_heads_that_tensor_parallelism_divides(count, family):
    model = Model.from_parameters(count, family=family)
    assert model.parameter_count == pytest.approx(count, rel=0.06)
    assert model.shape.hidden % model.shape.heads == 0
    assert model.shape.heads % model.shape.kv_heads == 0
    is_published = any(model.name == shape.name for shape in published_shapes())
    assert is_published or model.shape.heads % 8 == 0


@pytest.mark.slow
@given(st.floats(1e9, 1e12))
def test_a_person_may_fix_any_part_of_the_shape(count):
    free = Model.from_parameters(count)
    assert Model.from_parameters(count, vocab=50_000).shape.vocab == 50_000
    by_layers = Model.from_parameters(count, layers=free.shape.layers)
    assert by_layers.shape.layers == free.shape.layers
    assert by_layers.parameter_count == pytest.approx(count, rel=0.1)
    by_hidden = Model.from_parameters(count, hidden=free.shape.hidden)
    assert by_hidden.shape.hidden == free.shape.hidden
    assert Model.from_parameters(count, heads=32).shape.heads == 32


@pytest.mark.parametrize("left_out", [s for s in published_shapes() if not s.gated], ids=lambda shape: shape.name)
def test_the_error_band_holds_for_published_models_left_out_of_the_table(left_out):
    def same(shape):
        return shape.hidden == left_out.hidden and abs(shape.parameters / left_out.parameters - 1) < 0.03

    remaining = tuple(shape for shape in published_shapes() if not same(shape))
    partial = inference.PartialShape(layers=None, hidden=None, heads=None, vocab=50257, positions=2048)
    with patch.object(inference, "published_shapes", lambda: remaining):
        shape = inference.infer_shape(left_out.parameters, "gpt2", partial).shape
    band = inference.activation_band(left_out.parameters, "gpt2")
    assert shape.layers * shape.hidden == pytest.approx(left_out.layers * left_out.hidden, rel=band)


def test_a_shape_that_misses_the_count_says_what_it_makes():
    model = Model.from_parameters("10B", layers=40, hidden=4096)
    assert (model.shape.layers, model.shape.hidden) == (40, 4096)
    assert "layers and hidden given, which result in 8.27 B" in model.note


def test_a_vocabulary_that_outweighs_a_small_published_model_is_not_added_to_it():
    assert Model.from_parameters("125M", vocab=120_000).parameter_count == pytest.approx(125e6, rel=0.1)


def test_positions_reach_the_sequence_length():
    assert Model.from_parameters("10B").shape.max_positions == 2048
    assert Model.from_parameters("10B", sequence_length=4096).shape.max_positions == 4096
    assert Model.from_parameters("175B", sequence_length=512).shape.max_positions == 2048


@pytest.mark.parametrize("count", ["10B", "1.5B"])
def test_an_inferred_gpt_has_the_activation_function_of_its_family_or_the_requested_one(count):
    model = Model.from_parameters(count)
    assert json.loads(model.config_json)["activation_function"] == "gelu_new"
    assert model.groups[0].block.saved.unfused_split_elements == 3 * model.shape.ffn
    assert Model.from_parameters(count, activation="gelu").groups[0].block.saved.unfused_split_elements == 0
    with pytest.raises(ModelError, match="Unknown activation function 'gelu_old'"):
        Model.from_parameters(count, activation="gelu_old")


def test_a_family_without_a_choice_of_activation_functions_refuses_one():
    with pytest.raises(ModelError, match="The family 'bloom' has no activation; the fields of its shape are layers"):
        Model.from_shape(family="bloom", layers=2, hidden=64, heads=2, activation="gelu")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"count": "10M"}, "pass another vocab or hidden"),
        ({"count": "10B", "family": "bert"}, "gpt2 and llama"),
        ({"count": "10B", "family": "gtp2"}, "supported are gpt2"),
        ({"count": "10B", "layers": 0}, "layers must be a whole number"),
        ({"count": "10B", "hidden": 64}, "pass another vocab or hidden"),
        ({"count": "10B", "heads": 5000}, "pass a multiple as hidden"),
        ({"count": "10B", "vocab": 5e4}, "vocab must be a whole number"),
    ],
)
def test_what_cannot_be_inferred_is_refused_with_a_remedy(keywords, message):
    with pytest.raises(ModelError, match=message):
        Model.from_parameters(**keywords)
