"""The step that adjusts the model, and the 16-bit type of plans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from smp_advisor.guidance.model_changes import adjusted_sizes
from smp_advisor.workload import Model

P4D = "ml.p4d.24xlarge"


def changes(advice: smpa.Advice):
    return [step for step in advice.steps if step.technique == "model_changes"]


def test_a_vocabulary_that_costs_speed_gets_a_step_with_its_gain():
    for library in ("smp-v1", "smp-v2"):
        advice = smpa.advise("60B", P4D, instance_count=32, library=library, vocab=50_257, family="gpt2")
        (step,) = changes(advice)
        assert step.because.startswith("Change vocabulary 50,257 to 50,304: ")
        assert f"instead of {advice.estimate.tokens_per_second:,.0f} tokens/s" in step.because
        assert step.order == len(advice.steps)
        assert step.source_url
    pinned = smpa.advise("60B", P4D, instance_count=32, library="smp-v2", vocab=50_257, tensor_parallel_degree=8)
    assert "% faster)" in changes(pinned)[0].because


@pytest.mark.parametrize("name", ["60B", "llama-3-8b", "gpt-neox-20b"])
def test_sizes_that_cost_nothing_get_no_step(name):
    assert changes(smpa.advise(name, P4D, instance_count=32)) == []


def test_a_pretrained_model_keeps_its_architecture():
    xl = Model.from_name("gpt2-xl")
    assert adjusted_sizes(xl) == {
        "vocab": 50_304, "hidden": 1536, "heads": 24, "kv_heads": 24, "layers": 52, "ffn": 6144
    }  # fmt: skip
    assert adjusted_sizes(xl, pretrained=True) == {"vocab": 50_304}


@given(
    st.integers(1, 200), st.integers(1, 130), st.integers(1, 128), st.integers(100, 300_000), st.integers(10, 60_000)
)
def test_changes_are_slight_and_leave_nothing_to_change(layers, heads, width, vocab, ffn):
    model = Model.from_shape(layers=layers, hidden=heads * width, heads=heads, vocab=vocab, ffn=ffn)
    sizes = adjusted_sizes(model)
    assert vocab <= sizes.get("vocab", vocab) < vocab + 128
    if "hidden" in sizes:
        assert abs(sizes["hidden"] - heads * width) <= max(64, 128 - heads * width)
        assert sizes["hidden"] % sizes.get("heads", heads) == 0
    assert sizes.get("vocab", vocab) % 128 == 0
    assert sizes.get("ffn", ffn) % 128 == 0


@pytest.mark.slow
def test_bf16_is_the_type_of_plans_that_allow_it():
    sharded = smpa.advise("30B", P4D, instance_count=16, library="smp-v1")
    assert sharded.plan.sharded_data_parallel_degree > 1
    assert sharded.job.precision == sharded.plan.precision == "bf16"
    assert "precision bf16" in sharded.defaults
    plain = smpa.advise("1.3B", P4D, library="smp-v1", sharded_data_parallel_degree=1)
    assert plain.job.precision == "fp16"
    assert "bf16 only with sharded data parallelism" in plain.defaults[0]
    old = smpa.advise("1.3B", "ml.p3.16xlarge", library="smp-v1")
    assert "V100 16 GB does not compute in bf16" in old.defaults[0]
    of_job = smpa.advise("30B", P4D, smpa.Job(sequence_length=1024), instance_count=16)
    assert (of_job.job.precision, of_job.job.attention) == ("bf16", "fused")
    by_job = smpa.advise("30B", P4D, smpa.Job(attention="fused"), instance_count=16)
    assert by_job.job.precision == "fp16"
    requested = smpa.advise("30B", P4D, instance_count=16, library="smp-v1", precision="fp16")
    assert requested.job.precision == "fp16"
