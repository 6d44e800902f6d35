"""The table of published shapes."""

import pytest

from smp_advisor.workload import Model
from smp_advisor.workload.from_count import interpolated_hidden, published_shapes

# Parameter counts that the models' authors or their checkpoints state.
STATED = {
    "GPT-2": 124_439_808,
    "GPT-2 XL": 1_557_611_200,
    "GPT-3 175B": 174.6e9,
    "Megatron-LM 39.1B": 39.1e9,
    "Megatron-LM 1T": 1008.0e9,
    "OPT-66B": 65.7e9,
    "GPT-NeoX-20B": 20_554_567_680,
    "GPT-J-6B": 6_050_882_784,
    "BLOOM-176B": 176_247_271_424,
    "Falcon-40B": 41_303_293_952,
    "Llama 2 7B": 6_738_415_616,
    "Llama 3 8B": 8_030_261_248,
    "Llama 3 70B": 70_553_706_496,
    "Llama 3.2 1B": 1_235_814_400,
    "Mistral 7B": 7_241_732_096,
}


@pytest.mark.parametrize("name", STATED)
def test_counts_are_those_that_the_authors_state(name):
    shape = next(shape for shape in published_shapes() if shape.name == name)
    assert shape.parameters == pytest.approx(STATED[name], rel=1e-9 if isinstance(STATED[name], int) else 1e-3)


@pytest.mark.parametrize("shape", published_shapes(), ids=lambda shape: shape.name)
def test_every_row_adds_up_by_its_own_family(shape):
    keywords = {"ffn": shape.ffn, "max_positions": shape.positions}
    if shape.family == "bloom":
        assert shape.ffn == 4 * shape.hidden
        keywords = {}
    if shape.family in {"llama", "mistral", "falcon"}:
        keywords["kv_heads"] = shape.kv_heads
    model = Model.from_shape(
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        vocab=shape.vocab,
        family=shape.family,
        tied=shape.tied,
        **keywords,
    )
    assert model.parameter_count == shape.parameters
    assert shape.hidden % shape.heads == 0
    assert shape.source


def test_width_grows_with_size():
    widths = [interpolated_hidden(int(10**exponent), "gpt2") for exponent in (9, 10, 11, 12)]
    assert widths == sorted(widths)
