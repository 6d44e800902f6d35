"""Models that cannot be traced directly: the next method, labeled, or an error that explains what to supply."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

import smp_advisor  # noqa: E402
from smp_advisor.errors import ProfileError  # noqa: E402
from smp_advisor.profiling.fallback import profile_with_fallbacks  # noqa: E402
from smp_advisor.profiling.profiled_model import read_model  # noqa: E402
from smp_advisor.profiling.real_steps import profile_by_real_steps  # noqa: E402
from smp_advisor.profiling.result import Profile  # noqa: E402
from smp_advisor.profiling.trace import Settings  # noqa: E402
from tests.profiling.plain_models import PlainGPT  # noqa: E402

SETTINGS = Settings(precision="bf16", attention="fused", sequence=128, checkpointing=False)


def methods(profile):
    return {source.figure: (source.method, source.confidence) for source in profile.provenance}


class Tower(nn.Module):
    """Blocks that a subclass passes through in its own way."""

    def __init__(self, layers=4, width=16):
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = self.through(layer, hidden)
        return hidden.float().mean()

    def through(self, layer, hidden):
        return layer(hidden)


class ByValue(Tower):
    def through(self, layer, hidden):
        return layer(hidden) if hidden.sum().item() > 0 else hidden


class ByNumPy(Tower):
    def through(self, layer, hidden):
        return layer(hidden) * float(np.float32(hidden.detach().numpy().max()))


class ByIndex(Tower):
    def forward(self, x):
        hidden = self.embedding(x)
        for place in range(4):
            hidden = self.layers[place](hidden)
        return hidden.float().mean()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return 2 * gradient


class CustomGradient(Tower):
    def through(self, layer, hidden):
        return Doubled.apply(layer(hidden))


def test_a_plain_trace_is_exact():
    assert methods(profile_with_fallbacks(read_model(PlainGPT()), SETTINGS))["saved bytes"] == ("traced", "exact")


def test_custom_gradients_are_traced():
    profile = profile_with_fallbacks(read_model(CustomGradient()), SETTINGS)
    assert methods(profile)["FLOPs"] == ("traced", "exact")
    assert len(profile.blocks) == 4


def test_a_forward_that_counts_its_layers_is_traced_whole():
    profile = profile_with_fallbacks(read_model(ByIndex()), SETTINGS)
    assert methods(profile)["saved bytes"] == ("traced", "exact")
    tower = profile_with_fallbacks(read_model(Tower()), SETTINGS)
    assert profile.saved_bytes == tower.saved_bytes
    assert profile.forward_flops == tower.forward_flops


def test_a_test_on_values_takes_the_larger_of_both_answers_and_says_so():
    profile = profile_with_fallbacks(read_model(ByValue()), SETTINGS)
    assert methods(profile)["saved bytes"] == ("guided trace", "low")
    assert profile.forward_flops(1, 128) == profile_with_fallbacks(read_model(Tower()), SETTINGS).forward_flops(1, 128)
    assert any("depends on a tensor's values (test_fallback.py" in warning for warning in profile.warnings)


@pytest.mark.parametrize("quantized", [False, True])
def test_what_no_method_follows_is_refused_with_what_to_supply(quantized):
    model = ByNumPy()
    if quantized:
        model = Tower()
        model.layers = nn.ModuleList(torch.ao.nn.quantized.dynamic.Linear(16, 16) for _ in range(4))
    with pytest.raises(ProfileError, match="Pass inputs="):
        profile_with_fallbacks(read_model(model), SETTINGS)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, mask, extra):
        return (self.layer(x) * mask + extra).sum()


def test_odd_inputs_are_asked_for_and_taken():
    with pytest.raises(ProfileError, match=r"\(x, mask, extra\) can't be inferred: pass inputs="):
        profile_with_fallbacks(read_model(Odd()), SETTINGS)
    inputs = {"x": torch.zeros(2, 8), "mask": torch.zeros(2, 8), "extra": torch.zeros(2, 8)}
    profile = smp_advisor.profile(Odd(), stages=("trace",), inputs=inputs, precision="fp32")
    assert profile.forward_flops(4, 1) == 2 * 4 * 8 * 8
    assert profile.inputs.endswith("(supplied)")


@pytest.mark.slow
def test_real_steps_of_small_copies_find_what_the_trace_says():
    config = transformers.GPT2Config(n_embd=128, n_head=16, n_layer=6, vocab_size=700, n_positions=256, attn_pdrop=0.0)
    profiled = read_model(config)
    measured, traced = profile_by_real_steps(profiled, SETTINGS), profile_with_fallbacks(profiled, SETTINGS)
    assert measured.parameter_count == traced.parameter_count
    for figure in ("saved_bytes", "forward_flops", "backward_flops"):
        assert getattr(measured, figure)(4, 128) == pytest.approx(getattr(traced, figure)(4, 128), rel=1e-4)
    assert methods(measured)["saved bytes"] == ("real steps", "high")


def test_a_profile_survives_json():
    profile = profile_with_fallbacks(read_model(PlainGPT()), SETTINGS)
    assert Profile.from_dict(json.loads(json.dumps(profile.as_dict()))) == profile


def test_the_call_runs_isolated_and_explains_itself():
    model = PlainGPT()
    profile = smp_advisor.profile(model, sequence_length=128, precision="fp16", stages=("trace",))
    assert (profile.precision, profile.attention) == ("fp16", "eager")  # SMP v1 runs on PyTorch 1.x
    assert smp_advisor.profile(model, sequence_length=64, library="smp-v2", stages=("trace",)).attention == "fused"
    text = str(profile)
    assert "traced, confidence exact" in text
    assert "tied: wte.weight = head.weight" in text
    assert "<script" not in profile.as_html()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": ("dream",)}, "stages must be among trace, copy, local, rehearsal"),
        ({"stages": ("rehearsal",)}, "requires a plan"),
        ({"attention": "fast"}, "attention must be fused or eager"),
        ({"precision": "fp4"}, "precision must be one of"),
        ({"sequence": 3}, "no setting 'sequence'"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ProfileError, match=message):
        smp_advisor.profile("125M", **arguments)
