"""Models by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import advise
from smp_advisor.errors import ModelError
from smp_advisor.workload import Model
from smp_advisor.workload.from_config import is_model_name, model_names
from smp_advisor.workload.from_count import published_shapes


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


def test_every_published_shape_has_its_name_and_its_count():
    assert {shape.name for shape in published_shapes()} <= set(model_names())
    for shape in published_shapes():
        model = Model.from_name(shape.name)
        assert (model.name, model.parameter_count) == (shape.name, shape.parameters)
        assert model.origin == "given"


# Billions of parameters on the model cards.
STATED = {
    "Qwen/Qwen2.5-0.5B": 0.494, "Qwen/Qwen2.5-7B": 7.61, "Qwen/Qwen2.5-72B": 72.7, "Qwen/Qwen3-8B": 8.2,
    "Qwen/Qwen3-32B": 32.8, "Qwen/Qwen3-30B-A3B": 30.5, "Qwen/Qwen3-235B-A22B": 235, "google/gemma-2-2b": 2.61,
    "google/gemma-2-9b-it": 9.24, "google/gemma-2-27b": 27.2, "google/gemma-3-1b-pt": 1.0,
    "microsoft/Phi-3-mini-4k-instruct": 3.82, "microsoft/Phi-3-medium-4k-instruct": 14.0, "microsoft/phi-4": 14.7,
    "microsoft/Phi-4-mini-instruct": 3.84, "allenai/OLMo-7B-hf": 6.89, "allenai/OLMo-2-1124-7B": 7.3,
    "allenai/OLMo-2-1124-13B": 13.7, "allenai/OLMo-2-0325-32B-Instruct": 32.2, "openai/gpt-oss-20b": 20.9,
    "openai/gpt-oss-120b": 116.8, "deepseek-ai/DeepSeek-V2-Lite": 15.7, "deepseek-ai/DeepSeek-V2": 235.7,
    "deepseek-ai/DeepSeek-V3": 671, "deepseek-ai/DeepSeek-R1": 671, "meta-llama/Llama-4-Scout-17B-16E": 107.8,
    "mistralai/Mixtral-8x7B-v0.1": 46.7, "mistralai/Mixtral-8x22B-v0.1": 140.6,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03, "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    "google-t5/t5-base": 0.223, "t5-11b": 11.3, "google/flan-t5-xxl": 11.1, "google/vit-large-patch16-224": 0.304,
    "HuggingFaceTB/SmolLM2-135M": 0.135, "smollm2": 1.71, "moonshotai/Kimi-K2-Instruct": 1026,
    "microsoft/phi-1_5": 1.42, "microsoft/phi-2": 2.78, "google/electra-large-discriminator": 0.335,
    "FacebookAI/roberta-large": 0.355,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), STATED.items())
def test_configurations_by_name_have_the_count_of_their_model_card(name, billions):
    assert Model.from_name(name).parameter_count / 1e9 == pytest.approx(billions, rel=0.006)


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
