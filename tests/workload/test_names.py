"""Models by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import advise
from smp_advisor.errors import ModelError
from smp_advisor.workload import Model
from smp_advisor.workload.names import is_model_name, model_names
from smp_advisor.workload.published import published_shapes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Meta-Llama-3-70B", "Llama 3 70B"),
        ("llama-3-70b", "Llama 3 70B"),
        ("Meta-Llama-3-70B-Instruct", "Llama 3 70B"),
        ("meta-llama/Llama-2-70b-hf", "Llama 2 70B"),
        ("gpt2-xl", "GPT-2 XL"),
        ("gpt2", "GPT-2"),
        ("EleutherAI/gpt-neox-20b", "GPT-NeoX-20B"),
        ("bigscience/bloom", "BLOOM-176B"),
        ("mistralai/Mistral-7B-v0.1", "Mistral 7B"),
        ("GPT-3 175B", "GPT-3 175B"),
    ],
)
def test_a_name_is_read_with_or_without_its_owner(text, name):
    assert Model.from_name(text).name == name
    assert advise(text, "ml.p5.48xlarge", instance_count=64).model.name == name


def test_every_published_shape_has_its_name_and_its_count():
    assert {shape.name for shape in published_shapes()} <= set(model_names())
    for shape in published_shapes():
        model = Model.from_name(shape.name)
        assert (model.name, model.parameter_count) == (shape.name, shape.parameters)
        assert model.origin == "given"


@pytest.mark.parametrize(
    ("text", "suggestion"), [("llama-3-71b", "Llama 3 70B"), ("gtp2", "GPT-2"), ("zzzz", "a parameter count")]
)
def test_an_unknown_name_gets_the_most_similar_ones(text, suggestion):
    with pytest.raises(ModelError, match=rf"no model called '{text}': .*{suggestion}"):
        Model.from_name(text)


def test_a_path_is_no_name(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        advise(str(tmp_path / "gpt2" / "config.json"), "ml.p4d.24xlarge")
    with pytest.raises(ModelError, match="no model called 'somebody/model'"):
        advise("somebody/model", "ml.p4d.24xlarge")


def test_a_name_takes_no_other_shape():
    with pytest.raises(ModelError.__mro__[1], match="vocab can only be given with a parameter count"):
        advise("gpt2-xl", "ml.p4d.24xlarge", vocab=50_304)


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_one_sentence(text):
    if is_model_name(text):
        assert Model.from_name(text).parameter_count > 0
        return
    with pytest.raises(ModelError) as refusal:
        Model.from_name(text)
    assert len(str(refusal.value)) < 600
