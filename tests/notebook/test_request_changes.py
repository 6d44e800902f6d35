"""The same request with another setting: everything else stays, and so do pinned settings."""

from __future__ import annotations

import pytest

from smp_advisor import Cluster, Job, advise
from smp_advisor.advice.live.control_state import changed, changed_call, lost_pins, pins_of
from smp_advisor.advice.live.settings import settings_of
from smp_advisor.errors import AdvisorError

from .advice import make_advice

P4D = "ml.p4d.24xlarge"
FOUR = Cluster(P4D, 4)


@pytest.fixture(scope="module")
def advice():
    return advise("1.3B", P4D, instance_count=2, library="fsdp", sequence_length=512, layers=24)


def test_a_change_gives_the_advice_of_the_changed_request(advice):
    assert changed(advice, {}).plan == advice.plan
    after = changed(advice, {"instance_count": 4, "sequence_length": 1024})
    fresh = advise("1.3B", P4D, instance_count=4, library="fsdp", sequence_length=1024, layers=24)
    assert (after.plan, after.job, after.cluster, after.model) == (fresh.plan, fresh.job, fresh.cluster, fresh.model)
    assert changed(after, {"instance_count": None, "sequence_length": 512}).cluster.nodes == 1


def test_the_shape_of_a_count_follows_the_library():
    gpt = advise("1.3B", P4D, library="smp-v1", sequence_length=512)
    llama = changed(gpt, {"library": "smp-v2"})
    assert (gpt.model.family, llama.model.family) == ("gpt2", "llama")
    assert changed(llama, {"model": "llama-3-8b"}).model.name == "Llama 3 8B"


def test_pins_stay_and_the_rest_is_searched(advice):
    assert pins_of(advice) == ()
    pins = {"batch_size": 3, "activation_checkpointing": "each"}
    pinned = changed(advice, {"sequence_length": 256}, pins)
    assert {name: settings_of(pinned.plan, pinned.job)[name] for name in pins} == pins
    assert pins_of(pinned) == ("activation_checkpointing", "batch_size")
    assert changed(pinned, {}, {}).plan == changed(advice, {"sequence_length": 256}).plan


def test_both_kinds_of_sharding_are_one_pin_and_the_precision_is_another():
    advice = advise("1.3B", P4D, instance_count=2, library="smp-v1", sequence_length=512)
    pinned = changed(advice, {}, {"sharding": "optimizer_state", "precision": "fp16", "tensor_parallel_degree": 2})
    assert set(pins_of(pinned)) == {"sharding", "tensor_parallel_degree"}
    assert (pinned.plan.shard_optimizer_state, pinned.plan.precision) == (True, "fp16")
    assert lost_pins("fsdp", ["sharding", "precision"]) == ("sharding",)
    other = changed(pinned, {"library": "fsdp"}, {"sharding": "optimizer_state", "precision": "fp16"})
    assert (other.plan.library, other.plan.precision) == ("fsdp", "fp16")


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({"cluster": FOUR}, {"instance_count": 8}, {"cluster": FOUR.instance, "instance_count": 8}),
        ({"cluster": FOUR}, {"cluster": "ml.p5.48xlarge"}, {"cluster": "ml.p5.48xlarge", "instance_count": 4}),
        ({"job": Job(tokens=1e9)}, {"sequence_length": 512}, {"job": Job(tokens=1e9, sequence_length=512)}),
        ({"job": Job(tokens=1e9)}, {"tokens": None}, {"job": Job()}),
        ({"job": Job(tokens=1e9)}, {"precision": "fp16"}, {"job": None, "tokens": 1e9, "precision": "fp16"}),
        ({"max_days": 30}, {"max_days": None}, {}),
    ],
)
def test_changes_of_a_call(before, changes, after):
    assert changed_call(before, changes) == after


def test_a_job_stays_the_users_own_job():
    advice = advise("1.3B", P4D, Job(sequence_length=512, precision="bf16"), library="smp-v1")
    assert changed(advice, {"tokens": "1B"}).job.precision == "bf16"


def test_what_cannot_be_searched_is_a_sentence(advice):
    with pytest.raises(AdvisorError, match="Only advice made by advise"):
        changed(make_advice(), {"instance_count": 2})
    with pytest.raises(AdvisorError, match="did you mean sequence_length"):
        changed(advice, {"sequence_lenght": 2})
