"""Models that cannot be traced directly: the next method, labeled, or an error that explains what to supply."""

import pytest

import smp_advisor
from smp_advisor.errors import ProfileError
from tests.deferred import Deferred, deferred
from tests.profiling.shared import net, plain_profile, profiled
from tests.rows import rows

pytestmark = pytest.mark.torch

torch = Deferred("torch")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")

Broken, Holder, Masked = deferred("tests.profiling.models_hard_to_trace", "Broken", "Holder", "Masked")
ByIndex, ByNumPy, ByValue, CustomGradient, Odd, Tower = deferred(
    "tests.profiling.models_hard_to_trace", "ByIndex", "ByNumPy", "ByValue", "CustomGradient", "Odd", "Tower"
)


def traced(model, **settings):
    return profiled(model, **{"sequence": 128} | settings)


def methods(profile):
    return {source.figure: (source.method, source.confidence) for source in profile.provenance}


def test_custom_gradients_are_traced():
    profile = traced(CustomGradient())
    assert methods(profile)["FLOPs"] == ("traced", "exact")
    assert len(profile.blocks) == 4


def test_a_forward_that_counts_its_layers_is_traced_whole():
    profile = traced(ByIndex())
    assert methods(profile)["saved bytes"] == ("traced", "exact")
    tower = traced(Tower())
    assert profile.saved_bytes == tower.saved_bytes
    assert profile.forward_flops == tower.forward_flops


def test_a_test_on_values_takes_the_larger_of_both_answers_and_says_so():
    profile = traced(ByValue())
    assert methods(profile)["saved bytes"] == ("traced", "low")
    assert profile.forward_flops(1, 128) == traced(Tower()).forward_flops(1, 128)
    assert any("depends on a tensor's values (models_hard_to_trace.py" in warning for warning in profile.warnings)


def test_work_in_numpy_is_measured_by_real_steps():
    profile, tower = traced(ByNumPy(), precision="fp16"), traced(Tower(), precision="fp16")
    assert methods(profile)["FLOPs"] == ("real steps", "high")
    assert profile.forward_flops == tower.forward_flops
    assert profile.sequence == 128
    assert len(profile.blocks) == 4


def test_shapes_that_depend_on_values_are_measured_with_low_confidence():
    profile = traced(Masked())
    assert methods(profile)["saved bytes"] == ("real steps", "low")
    assert 0 < profile.forward_flops(2, 128) <= 2 * 2 * 128 * 16 * 100


@pytest.mark.parametrize("place", rows(["DataParallel", "inside"], "DataParallel"))
def test_wrappers_are_looked_through(place):
    model, plain = PlainGPT(layers=6), plain_profile()
    assert methods(plain)["saved bytes"] == ("traced", "exact")
    wrapped = {"DataParallel": torch.nn.DataParallel, "inside": lambda module: Holder(torch.compile(module))}[place](
        model
    )
    profile = traced(wrapped, sequence=256)
    assert profile.forward_flops == plain.forward_flops
    assert profile.saved_bytes == plain.saved_bytes
    assert len(profile.blocks) == 6
    assert profile.name == ("Holder" if place == "inside" else "PlainGPT")


def test_sparse_embeddings_are_traced():
    model = Tower()
    model.embedding = torch.nn.Embedding(64, 16, sparse=True)
    assert traced(model).forward_flops == traced(Tower()).forward_flops


def test_a_loop_on_a_traced_value_ends_as_its_values_let_it_or_by_a_count_that_names_its_line(monkeypatch):
    monkeypatch.setattr("smp_advisor.profiling.failures._MOST_READS", 50)
    monkeypatch.setattr("smp_advisor.profiling.step_recorder._MOST_OPERATIONS", 500)

    def forward(self, x):
        while x.abs().mean() > self.least:
            x = 0.5 * self.layer(x)
        return self.layer(x)

    profile = traced(net(forward, least=0.5, layer=torch.nn.Linear(8, 8)), inputs=torch.ones(4, 8))
    assert methods(profile)["FLOPs"][0] == "real steps"
    with pytest.raises(
        ProfileError, match=r"`while x.abs\(\).mean\(\) > self.least:` \(test_fallback.py:\d+\) did not"
    ):
        traced(net(forward, least=-1.0, layer=torch.nn.Linear(8, 8)), inputs=torch.ones(4, 8))


def test_an_error_of_the_model_is_no_hint_to_pass_inputs():
    with pytest.raises(ProfileError, match="the cluster is on fire") as caught:
        traced(Broken())
    assert "inputs=" not in str(caught.value)


def test_a_module_that_cannot_be_trained_is_refused_with_what_to_supply():
    model = Tower()
    model.layers = torch.nn.ModuleList(torch.ao.nn.quantized.dynamic.Linear(16, 16) for _ in range(4))
    with pytest.raises(ProfileError, match=r"forward fails|cannot be"):
        traced(model)


def test_odd_inputs_are_asked_for_and_taken():
    with pytest.raises(ProfileError, match=r"can't be inferred from a layer: Odd.forward takes"):
        smp_advisor.profile(Odd())  # the first of several failures
    inputs = {"x": torch.zeros(2, 8), "mask": torch.zeros(2, 8), "extra": [(None, {"bias": torch.zeros(2, 8)})]}
    profile = smp_advisor.profile(Odd(), stages=("trace",), inputs=inputs, precision="fp32")
    assert profile.forward_flops(2, 1) == 2 * 2 * 8 * 8
    assert profile.inputs.endswith("(supplied)")


def test_the_call_runs_isolated_and_explains_itself():
    model = PlainGPT(layers=2)
    profile = smp_advisor.profile(model, sequence_length=128, precision="fp16", library="smp-v1", stages=("trace",))
    assert (profile.precision, profile.attention) == ("fp16", "eager")  # SMP v1 runs on PyTorch 1.x
    assert smp_advisor.profile(model, sequence_length=64, library="smp-v2", stages=("trace",)).attention == "fused"
    text = profile.details()
    assert "traced, confidence exact" in text
    assert "tied: wte.weight = head.weight" in text
    assert "<script" not in profile._repr_html_()
