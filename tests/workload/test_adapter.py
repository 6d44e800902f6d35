"""Adapters: what is trained, what is kept, what the frozen base takes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.errors import JobError
from smp_advisor.workload import Adapter, Job, Model

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


def test_experts_and_the_model_under_an_adapter():
    sparse = Model.from_shape(layers=2, hidden=512, heads=8, ffn=1024, family="mixtral", experts=4, experts_per_token=2)
    dense = Model.from_shape(layers=2, hidden=512, heads=8, ffn=1024, family="llama", vocab=32000)
    adapter = Adapter(rank=4, targets="all-linear")
    attention = Adapter(rank=4, targets="attention").parameter_count(dense)
    experts = adapter.parameter_count(sparse) - attention
    assert experts == 4 * (adapter.parameter_count(dense) - attention)

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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": True}, "rank"),
        ({"targets": "q_proj"}, "targets"),
        ({"base_bits": 5}, "base_bits"),
        ({"double_quantization": True}, "base_bits=4"),
        ({"dropout": 0.1}, "True or False"),
    ],
)
def test_a_wrong_adapter_is_named(settings, message):
    with pytest.raises(JobError, match=message):
        Adapter(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapter": "lora"}, "Adapter"),
        ({"adapter": Adapter(base_bits=4), "precision": "fp32"}, "16 bits"),
        ({"fp8": True, "precision": "fp16"}, "bf16"),
        ({"optimizer": "adamw"}, "adam-8bit"),
    ],
)
def test_a_job_refuses_what_does_not_go_together(settings, message):
    with pytest.raises(JobError, match=message):
        Job(**settings)
