"""The extrapolated peak against a steady-state step traced with its optimizer."""

from functools import cache

import pytest

from tests.deferred import Deferred, deferred

pytestmark = pytest.mark.torch

torch = Deferred("torch")
transformers = Deferred("transformers")
build_fake, fake_inputs = deferred("smp_advisor.profiling.fake", "build_fake", "fake_inputs")
KnownValuesMode = Deferred("smp_advisor.profiling.known_values", "KnownValuesMode")
example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
make_optimizer = Deferred("smp_advisor.profiling.step", "make_optimizer")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
measure_step = Deferred("smp_advisor.profiling.step", "measure_step")
stacks = Deferred("smp_advisor.profiling.structure", "stacks")
Settings, compute_dtype = deferred("smp_advisor.profiling.traced_steps", "Settings", "compute_dtype")
trace = Deferred("smp_advisor.profiling.trace", "trace")

GPT2_XL = {"n_embd": 1600, "n_layer": 12, "n_head": 25}
LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
MODELS = {"twelve layers of GPT-2 XL": ("GPT2Config", GPT2_XL), "eight layers of Llama 3 8B": ("LlamaConfig", LLAMA_8B)}


def config(name):
    class_name, keywords = MODELS[name]
    return getattr(transformers, class_name)(**keywords)


@cache
def profiled(name, precision, sequence=1024):
    """Profile of a model of `MODELS`; some tests use the same one."""
    settings = Settings(precision=precision, attention="fused", sequence=sequence)
    return trace(read_model(config(name)), settings).profile


def traced_steady_state(config, settings, *, batch, sequence, checkpointing):
    """Peak of the second of two steps, optimizer state resident, gradients freed between steps."""
    mode = KnownValuesMode()
    dtype = compute_dtype(settings.training_precision)
    model = build_fake(lambda: read_model(config).build(attention=settings.attention), mode, dtype).train()
    inputs = fake_inputs(example_inputs(model).make(batch, sequence), mode, dtype)
    with mode:
        return measure_step(
            model,
            inputs,
            precision=settings.precision,
            attention=settings.attention,
            blocks=[path for stack in stacks(model) for path in stack.paths],
            optimizer=make_optimizer(list(model.parameters()), settings.optimizer),
            steps=2,
            checkpointing=checkpointing,
        ).peak_bytes


@pytest.mark.parametrize(
    ("model", "precision", "sequence", "checkpointing"),
    [
        ("twelve layers of GPT-2 XL", "bf16", 1024, False),
        ("twelve layers of GPT-2 XL", "bf16", 1024, True),
        ("twelve layers of GPT-2 XL", "amp", 512, False),
        ("eight layers of Llama 3 8B", "bf16", 1024, False),
    ],
)
def test_the_composed_peak_is_the_traced_one(model, precision, sequence, checkpointing):
    settings = Settings(precision=precision, attention="fused")
    extrapolated = profiled(model, precision).peak_memory(2, sequence, checkpointing=checkpointing)
    traced = traced_steady_state(config(model), settings, batch=2, sequence=sequence, checkpointing=checkpointing)
    assert extrapolated.peak_bytes == pytest.approx(traced, rel=1e-3)


def test_the_closed_form_is_what_the_timeline_says():
    # P + O + max(A + 8 b s V, G + one block's A), the 8 for the fp32 loss that transformers computes.
    batch, sequence = 2, 1024
    profile = profiled("twelve layers of GPT-2 XL", "bf16", sequence)
    peak = profile.peak_memory(batch, sequence)
    resident = peak.parameters_bytes + peak.optimizer_state_bytes
    logits = 8 * batch * sequence * profile.vocab
    block = profile.blocks[-1].saved_bytes(batch, sequence)
    closed = resident + max(peak.activations_bytes + logits, peak.gradients_bytes + block)
    assert peak.passes_bytes == pytest.approx(closed, rel=2e-3)


@pytest.mark.parametrize(
    ("precision", "at_rest", "at_peak"),
    [("fp32", 16, 20), ("bf16", 8, 10), ("fp16", 20, 24), ("amp", 16, 20), ("mixed", 16, 20)],
)
def test_bytes_a_parameter(precision, at_rest, at_peak):
    config = transformers.GPT2Config(n_embd=512, n_head=8, n_layer=3, vocab_size=256, n_positions=64)
    profile = trace(
        read_model(config), Settings(precision=precision, attention="fused", sequence=64, checkpointing=False)
    ).profile
    peak = profile.peak_memory(1, 8)
    assert peak.phase == "optimizer"
    count = profile.parameter_count
    resident = peak.parameters_bytes + peak.optimizer_state_bytes + peak.gradients_bytes
    assert (resident / count, peak.peak_bytes / count) == pytest.approx((at_rest, at_peak), rel=1e-3)
