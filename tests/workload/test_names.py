"""Models by name and by parameter count."""

import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import advise
from smp_advisor.arguments import amount_of
from smp_advisor.core.files import rows
from smp_advisor.errors import ModelError
from smp_advisor.workload import Model, format_count, parse_count
from smp_advisor.workload import from_count as inference
from smp_advisor.workload.from_config import _similar, configuration_to_trace, is_model_name, model_names
from smp_advisor.workload.from_count import published_shapes

NAMES = {
    "meta-llama/Meta-Llama-3-70B": "Llama 3 70B", "llama-3-70b": "Llama 3 70B", "gpt2-xl": "GPT-2 XL", "gpt2": "GPT-2",
    "Meta-Llama-3-70B-Instruct": "Llama 3 70B", "meta-llama/Llama-2-70b-hf": "Llama 2 70B",
    "EleutherAI/gpt-neox-20b": "GPT-NeoX-20B", "bigscience/bloom": "BLOOM-176B", "GPT-3 175B": "GPT-3 175B",
    "bigscience/bloomz-7b1-mt": "BLOOM-7.1B", "bigscience/bloomz-560m": "BLOOM-560M", "Qwen/QwQ-32B": "Qwen2.5 32B",
    "codellama/CodeLlama-13b-Python-hf": "Code Llama 13B Python", "codellama/CodeLlama-7b-hf": "Code Llama 7B",
    "mistralai/Mistral-7B-v0.1": "Mistral 7B", "openai/whisper-large-v3": "Whisper large-v3", "clip": "CLIP ViT-L/14",
    "microsoft/swin-base-patch4-window7-224": "Swin base", "resnet-50": "ResNet 50", "convnext-base": "ConvNeXt base",
    "stabilityai/stable-diffusion-xl-base-1.0": "SDXL U-Net", "sd-1.5": "Stable Diffusion 1.5 U-Net",
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), NAMES.items())
def test_a_name_is_read_with_or_without_its_owner(text, name):
    assert Model.from_name(text).name == name


@pytest.mark.slow
def test_every_published_shape_and_module_has_its_name():
    assert {shape.name for shape in published_shapes()} <= set(model_names())
    for shape in published_shapes():
        model = Model.from_name(shape.name)
        assert (model.name, model.parameter_count) == (shape.name, shape.parameters)
        assert model.origin == "given"

    for row in rows("smp_advisor.workload", "data/published_modules.csv"):
        model = Model.from_name(row["name"])
        assert (model.name, model.parameter_count) == (row["name"], int(row["parameters"]))
        assert row["source"] in model.note
    advice = advise(model.name, "ml.p4d.24xlarge")
    assert advice.model.parameter_count == model.parameter_count
    assert "samples" in str(advice)
    assert "Replace train.py with your training script" in advice.cell()


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
    "moonshotai/Moonlight-16B-A3B": 15.96,
    "microsoft/phi-1_5": 1.42, "microsoft/phi-2": 2.78, "google/electra-large-discriminator": 0.335,
    "FacebookAI/roberta-large": 0.355, "mistralai/Mistral-Nemo-Base-2407": 12.25, "olmo-3-7b": 7.3,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23.57, "01-ai/Yi-34B": 34.39, "EleutherAI/pythia-12b": 11.846,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.1, "tiiuae/Falcon3-7B-Base": 7.46, "google/gemma-3-270m": 0.268,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480.2, "Qwen/Qwen1.5-MoE-A2.7B": 14.3, "codellama/CodeLlama-34b-hf": 33.74,
    "google/gemma-7b": 8.54, "mistralai/Mistral-Large-Instruct-2407": 122.6, "allenai/Olmo-3-1125-32B": 32.23,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7.61, "Qwen/Qwen3-4B-Thinking-2507": 4.02,
    "upstage/SOLAR-10.7B-v1.0": 10.73,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), STATED.items())
def test_configurations_by_name_have_the_count_of_their_model_card(name, billions):
    assert Model.from_name(name).parameter_count / 1e9 == pytest.approx(billions, rel=0.006)


# Families without formulas, whose names stand for configurations that are traced.
TRACED = {
    "HuggingFaceTB/SmolLM3-3B": 3.08, "zai-org/GLM-4.5-Air": 106.9, "zai-org/GLM-4.5": 352.8, "glm-4-32b": 32.57,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79.7, "granite-3.3-8b-instruct": 8.17,
    "ByteDance-Seed/Seed-OSS-36B-Base": 36.15,
    "ernie-4.5-21b-a3b": 21.8, "command-r-plus": 103.8, "command-a": 111.06, "LGAI-EXAONE/EXAONE-4.0-32B": 32.0,
    "bigcode/starcoder2-15b": 15.96, "MiniMaxAI/MiniMax-M2": 228.7, "allenai/OLMoE-1B-7B-0924": 6.92,
    "microsoft/Phi-3.5-MoE-instruct": 41.87, "swiss-ai/Apertus-70B-2509": 70.6, "answerdotai/ModernBERT-large": 0.396,
    "FacebookAI/xlm-roberta-large": 0.56, "state-spaces/mamba-2.8b-hf": 2.768,
}  # fmt: skip


@pytest.mark.torch
def test_configurations_of_families_without_formulas_have_the_count_of_their_model_card():
    import torch

    from smp_advisor.profiling.profiled_model import read_model

    for name, billions in TRACED.items():
        with torch.device("meta"):
            module = read_model(configuration_to_trace(name)).build()
        assert sum(p.numel() for p in module.parameters()) / 1e9 == pytest.approx(billions, rel=0.006), name


def test_near_names_are_of_the_series_and_of_the_size():
    for text, near in {
        "qwen3.5-9b": "Qwen3 8B",
        "glm-5": "GLM-4.5",
        "claude-3": None,
        "granite-4-8b": "Granite 3 8B",
    }.items():
        assert next(iter(_similar(text)), None) == near


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_one_sentence(text):
    if is_model_name(text):
        assert Model.from_name(text).parameter_count > 0
        return
    with pytest.raises(ModelError) as refusal:
        Model.from_name(text)
    assert len(str(refusal.value)) < 600


WRITTEN = {
    "10B": 10**10, "1.5b": 1_500_000_000, "350M": 350_000_000, "10_000_000_000": 10**10, "10,000,000,000": 10**10,
    "1.3 T": 13 * 10**11, " 70 B ": 70 * 10**9, "10e9": 10**10, ".5B": 5 * 10**8, 10e9: 10**10, 124_808: 124_808,
}  # fmt: skip


@pytest.mark.parametrize(("written", "count"), WRITTEN.items())
def test_reads_what_people_write(written, count):
    assert parse_count(written) == count


@given(st.integers(1, 10**15))
def test_what_is_shown_reads_back_as_nearly_the_same_count(count):
    assert parse_count(format_count(count)) == pytest.approx(count, rel=5e-3)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(9_867_264_000, "9.87 B"), (999_600_000, "1 B"), (174.6e9, "175 B"), (1_008e9, "1.01 T"), (12, "12")],
)
def test_shows_three_digits(count, shown):
    assert format_count(count) == shown


@pytest.mark.parametrize(
    ("written", "amount"), [("300B", 3e11), ("1.4T", 1.4e12), ("2_000k", 2e6), (7, 7.0), ("0.5", 0.5), ("3e11", 3e11)]
)
def test_amounts_are_read_as_people_write_them(written, amount):
    assert amount_of("tokens", written) == amount


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
    model = Model.from_parameters(count, family="gpt2")
    assert (model.name, model.shape.layers, model.shape.hidden, model.shape.heads) == (name, layers, hidden, heads)
    assert name in model.note
    assert model.origin == "inferred"


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
    free = Model.from_parameters(count, family="gpt2")
    assert Model.from_parameters(count, vocab=50_000, family="gpt2").shape.vocab == 50_000
    by_layers = Model.from_parameters(count, layers=free.shape.layers, family="gpt2")
    assert by_layers.shape.layers == free.shape.layers
    assert by_layers.parameter_count == pytest.approx(count, rel=0.1)
    by_hidden = Model.from_parameters(count, hidden=free.shape.hidden, family="gpt2")
    assert by_hidden.shape.hidden == free.shape.hidden
    assert Model.from_parameters(count, heads=32, family="gpt2").shape.heads == 32


@pytest.mark.parametrize("left_out", [s for s in published_shapes() if not s.gated], ids=lambda shape: shape.name)
def test_the_error_band_holds_for_published_models_left_out_of_the_table(left_out):
    def same(shape):
        return shape.hidden == left_out.hidden and abs(shape.parameters / left_out.parameters - 1) < 0.03

    remaining = tuple(shape for shape in published_shapes() if not same(shape))
    partial = inference.PartialShape(vocab=50257, positions=2048)
    with patch.object(inference, "published_shapes", lambda: remaining):
        shape = inference.infer_shape(left_out.parameters, "gpt2", partial).shape
    band = inference.activation_band(left_out.parameters, "gpt2")
    assert shape.layers * shape.hidden == pytest.approx(left_out.layers * left_out.hidden, rel=band)


@pytest.mark.parametrize("count", ["10B", "1.5B"])
def test_an_inferred_gpt_has_the_activation_function_of_its_family_or_the_requested_one(count):
    model = Model.from_parameters(count, family="gpt2")
    assert json.loads(model.config_json)["activation_function"] == "gelu_new"
    assert model.groups[0].block.saved.unfused_split_elements == 3 * model.shape.ffn
    assert (
        Model.from_parameters(count, activation="gelu", family="gpt2").groups[0].block.saved.unfused_split_elements == 0
    )


def test_shapes_of_a_count():
    model = Model.from_parameters("10B", layers=40, hidden=4096, family="gpt2")
    assert (model.shape.layers, model.shape.hidden) == (40, 4096)
    assert "layers and hidden given, which result in 8.27 B" in model.note

    assert Model.from_parameters("125M", vocab=120_000, family="gpt2").parameter_count == pytest.approx(125e6, rel=0.1)

    assert Model.from_parameters("10B", family="gpt2").shape.max_positions == 2048
    assert Model.from_parameters("10B", sequence_length=4096, family="gpt2").shape.max_positions == 4096
    assert Model.from_parameters("175B", sequence_length=512, family="gpt2").shape.max_positions == 2048

    model = Model.from_parameters("10B", family="gpt2")
    assert model.origin == "inferred"
    assert "inferred from 10 B" in model.note
    assert "±25 %" in model.note
    assert model.summary == (
        "GPT-2 shape, 48 layers, hidden 4096, 32 heads, vocabulary 50,304; 9.88 B parameters (inferred from 10 B)"
    )
