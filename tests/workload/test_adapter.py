"""Adapters: what is trained, what is kept, what the frozen base takes."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import Job, stacks
from smp_advisor.errors import JobError, UnknownFamilyError
from smp_advisor.libraries.library import get_library, libraries
from smp_advisor.workload import Adapter, Model
from tests.profiling.shared import profiled
from tests.rows import rows

LLAMA_7B = Model.from_shape(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000, family="llama")
LLAMA_8B = Model.from_shape(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, family="llama")


@pytest.mark.parametrize(
    ("model", "adapter", "trained"),
    [
        # Counts as published beside the runs: LoRA of rank 8 on queries and values.
        (LLAMA_7B, Adapter(rank=8, targets="query-value"), 4_194_304),
        (Model.from_name("llama-2-13b"), Adapter(rank=8, targets="query-value"), 6_553_600),
        # PEFT on Llama 3 8B: q 4096 x 4096, k and v 4096 x 1024, o 4096 x 4096.
        (LLAMA_8B, Adapter(rank=16, targets="attention"), 32 * 16 * (8192 + 5120 + 5120 + 8192)),
        (LLAMA_8B, Adapter(), 41_943_040),
    ],
)
def test_trained_parameters(model, adapter, trained):
    assert adapter.parameter_count(model) == trained


SMALL = tomllib.loads(Path(__file__).parents[2].joinpath("benchmarks", "exported_jobs.toml").read_text())

FAMILIES = {name: kind for name, kind in SMALL["family"].items() if "LoRA" in kind.get("kinds", ["LoRA"])}

IN_SUITE = {"llama", "gpt2, tied, dropout", "mixtral", "qwen2_moe", "deepseek_v3"}
"""Dense, in GPT-2's own layers, and mixtures with formulas, with shared experts and without formulas."""


@pytest.mark.torch
@pytest.mark.parametrize("name", rows(FAMILIES, *FAMILIES.keys() - IN_SUITE))
def test_peft_and_bitsandbytes_see_the_modules_of_each_family_as_the_estimate_does(name):
    """Of each small model of the table of exported jobs: trained parameters, and those in linear modules."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    family = FAMILIES[name]
    settings = {key: value for key, value in SMALL["sizes"].items() if key not in family.get("without", ())}
    settings |= family["settings"]
    try:
        model = Model.from_config(settings)
    except UnknownFamilyError:
        model = Model.from_profile(profiled(settings))
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    packed = sum(
        part.weight.numel()
        for part in real.modules()
        if isinstance(part, (torch.nn.Linear, Conv1D)) and part is not real.get_output_embeddings()
    )
    adapted = Adapter(base_bits=4).applied_to(model)
    counted = sum(group.count * (group.block.parameters - group.block.unpacked_parameters) for group in adapted.groups)
    assert packed == counted
    found = get_peft_model(real, LoraConfig(r=16, target_modules="all-linear")).get_nb_trainable_parameters()[0]
    assert found == Adapter().parameter_count(model)


def test_experts_have_no_dropout_and_are_merged_in_each_pass():
    sparse = Model.from_shape(layers=2, hidden=512, heads=8, ffn=1024, family="mixtral", experts=4, experts_per_token=2)
    (group,) = Adapter().applied_to(sparse).groups
    assert group.block.saved.merged_elements == 4 * 3 * 512 * 1024 + 4 * 512
    assert Adapter().applied_to(sparse) == Adapter(dropout=False).applied_to(sparse)
    assert Adapter(targets="attention").applied_to(sparse) != Adapter(targets="attention", dropout=False).applied_to(
        sparse
    )
    quantized = Adapter(base_bits=4)
    assert quantized.base_bytes(sparse) > 1.9 * sparse.parameter_count


def test_an_adapter_by_the_name_of_its_method():
    assert Job(adapter="LoRA") == Job(adapter=Adapter())
    assert Job(adapter="qlora") == Job(adapter=Adapter(base_bits=4, double_quantization=True))
    with pytest.raises(JobError, match="'lora', 'qlora' or an Adapter"):
        Job(adapter="dora")


def test_the_model_under_an_adapter():
    adapted = Adapter().applied_to(LLAMA_7B)
    assert adapted.parameter_count == LLAMA_7B.parameter_count
    assert dataclasses.replace(adapted, groups=LLAMA_7B.groups) == LLAMA_7B


@given(rank=st.sampled_from([1, 8, 64]), targets=st.sampled_from(["query-value", "attention", "all-linear"]))
def test_more_targets_train_and_keep_more(rank, targets):
    def saved(adapter):
        activations = adapter.applied_to(LLAMA_8B).groups[0].block.saved
        return activations.split_elements + activations.replicated_elements

    adapter = Adapter(rank=rank, targets=targets)
    fewest, most = (Adapter(rank=rank, targets=name) for name in ("query-value", "all-linear"))
    assert fewest.parameter_count(LLAMA_8B) <= adapter.parameter_count(LLAMA_8B) <= most.parameter_count(LLAMA_8B)
    assert saved(fewest) <= saved(adapter) <= saved(most)
    assert saved(dataclasses.replace(adapter, dropout=False)) < saved(adapter)


def test_bytes_of_a_frozen_weight():
    assert Adapter().base_bytes_per_parameter == 2
    assert Adapter(base_bits=8).base_bytes_per_parameter == 1
    # QLoRA's own figures: 0.5 bits a parameter for the scales, 0.127 with double quantisation.
    assert Adapter(base_bits=4).base_bytes_per_parameter == pytest.approx((4 + 0.5) / 8)
    double = Adapter(base_bits=4, double_quantization=True)
    assert double.base_bytes_per_parameter == pytest.approx((4 + 0.127) / 8, rel=1e-3)


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


def test_stacks_have_sources_attention_and_libraries() -> None:
    for stack in stacks().values():
        assert stack.source
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", stack.date)
        assert stack.summary.endswith(".")
        assert stack.divided.divided_by == ""

    assert Job().attention == "eager"
    assert Job(stack="hf-flash-2").attention == "fused"
    assert Job(stack="hf-eager").attention == "eager"
    assert Job(stack="megatron", attention="eager").attention == "eager"
    assert "attention" in Job(stack="hf-flash-2").defaulted()
    assert "attention" not in Job(attention="fused").defaulted()

    assert {record.stack for record in libraries()} <= set(stacks())
    assert get_library("smp-v1").stack == "smp-v1"


def test_code_before_transformers_5_packs_experts_and_saves_the_inputs_of_its_base():
    mixtral = Model.from_name("mixtral-8x7b")
    now, then = (Adapter(base_bits=4, before_transformers_5=old) for old in (False, True))
    assert then.base_bytes(mixtral) < 0.35 * now.base_bytes(mixtral)
    dense = Model.from_name("llama-2-7b")
    saved = [of.applied_to(dense).groups[0].block.saved for of in (now, then)]
    assert saved[1].split_elements > saved[0].split_elements
    assert saved[1].replicated_elements > saved[0].replicated_elements
