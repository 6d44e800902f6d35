"""The widget shows advice for every library, with controls that are the library's own."""

from __future__ import annotations

import pytest

from smp_advisor import advise
from smp_advisor.advice.live import control_state
from smp_advisor.advice.live.settings import plan_of, require_settings, settings_of
from smp_advisor.libraries.schema import schema
from smp_advisor.notebook.advisor import Advisor
from smp_advisor.notebook.view_state import explanation, recommendation

ASKED = {
    "smp-v2": {"model": "7B", "family": "llama", "sequence_length": 1024},
    "fsdp": {"model": "7B", "sequence_length": 1024},
    "ddp": {"model": "350M", "sequence_length": 512},
    "training-compiler": {"model": "124M", "sequence_length": 512},
    "smp-v1-tensorflow": {"model": "1.3B", "sequence_length": 512},
}


@pytest.fixture(scope="module", params=ASKED)
def advice(request):
    asked = dict(ASKED[request.param])
    return advise(asked.pop("model"), "ml.p4d.24xlarge", library=request.param, max_tokens_per_step=100_000, **asked)


def test_settings_make_the_plan_again(advice):
    settings = settings_of(advice.plan)
    assert plan_of(advice, settings) == advice.plan
    assert require_settings(settings, advice.plan.library) == settings
    moved = {**settings, "batch_size": settings["batch_size"] * 2}
    assert plan_of(advice, moved).batch_size == moved["batch_size"]
    assert settings_of(plan_of(advice, moved)) == moved


def test_the_recommendation_goes_to_the_view(advice):
    told = {**recommendation(advice), **explanation(advice)}
    assert len(told["names"]) == len(told["rows"]) == len(told["recommended"]["configuration"])
    assert (told["reference"] is None) == (advice.plan.library != "smp-v2")
    assert any(fact["label"] == "Library" for fact in told["facts"])
    html = Advisor(advice)._repr_mimebundle_()[0]["text/html"]
    assert schema(advice.plan.library).name in html
    assert ("Nearest AWS reference" in html) == (told["reference"] is not None)


def test_offloading_and_checkpointing_follow_each_other():
    advice = advise("7B", "ml.p4d.24xlarge", library="smp-v2", family="llama", sequence_length=1024)
    bench = control_state.recommended(advice)
    on = control_state.move(bench, "offload_activations", True)
    assert on.settings["activation_checkpointing"] == "each"
    assert on.plan.sm_activation_offloading is True
    off = control_state.move(on, "activation_checkpointing", "none")
    assert off.settings["offload_activations"] is False
    assert off.plan.sm_activation_offloading is False
