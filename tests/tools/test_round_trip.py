"""One question, one answer: a model is the same in advise, compare, estimate, fits, check and export."""

import json
from dataclasses import asdict, replace

import pytest

import smp_advisor as smpa
from smp_advisor.tools.answers import settings_of
from smp_advisor.tools.interface import Caller, call
from tests.rows import rows

P4D, P5 = "ml.p4d.24xlarge", "ml.p5.48xlarge"
_CONFIG = {"model_type": "mistral", "hidden_size": 2048, "num_hidden_layers": 20, "vocab_size": 50_000}


MODELS = ("7B", "350M", "1.5 bn", "13B", "llama-3.1-8b", "gpt2-xl", "config.json")


# A number that fits with each library, one with a unit in words, a name and a file stay.
@pytest.mark.parametrize("model", rows(MODELS, "7B", "13B", "gpt2-xl"))
def test_a_model_is_one_model_on_every_surface(model, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(_CONFIG))
    caller, request = Caller(roots=(tmp_path,)), {"model": model, "instance": P4D, "count": 2}
    described = str(tmp_path / model) if model.endswith(".json") else model
    names = set()
    for library in ("auto", "fsdp", "ddp", "smp-v2", "smp-v1"):
        try:
            advice = smpa.advise(described, P4D, instance_count=2, library=library)
        except smpa.errors.NoPlanFitsError:
            continue
        names.add(advice.model)
        if model[0].isdigit():
            length = advice.job.sequence_length
            assert advice.model == smpa.Model.from_parameters(model, sequence_length=length)
        needed = round(advice.estimate.needed_gib, 1)
        answer = call("advise", {**request, "library": library}, caller)
        assert answer["needed_gib_per_gpu"] == needed
        settings = {name: value for name, value in settings_of(advice.plan).items() if name != "library"}
        settings |= advice.job.training_settings()
        sizes = {"sequence_length": advice.job.sequence_length}
        plan = {**request, **sizes, "library": advice.plan.library, "settings": settings}
        assert call("estimate", plan, caller)["needed_gib_per_gpu"] == needed

        for sdk in ("v2", "v3"):
            report = smpa.check_estimator(advice.cell(sdk=sdk))
            assert report.main.model == advice.model
            assert report.main.estimate.needed_gib == pytest.approx(advice.estimate.needed_gib)
        advice.save(tmp_path / "advice.json")
        reloaded = smpa.load(tmp_path / "advice.json")
        assert (reloaded.model, reloaded.estimate) == (advice.model, advice.estimate)
    assert len(names) == 1
    answer = call("compare", {**request, "libraries": ["fsdp", "smp-v1", "smp-v2", "ddp"]}, caller)
    assert {row["model"] for row in answer["rows"] if row["fits"]} == {names.pop().name}


def test_defaults_that_nobody_set_contradict_nothing():
    assert smpa.advise("llama-3.1-8b", P5, fp8=True).job.precision == "bf16"
    model, plan = smpa.Model.from_name("llama-3.1-8b"), smpa.Plan(library="fsdp", batch_size=1)
    assert smpa.estimate(model, smpa.Cluster(P5, 1), smpa.Job(sequence_length=2048), plan).plan.precision == "bf16"


def test_an_estimate_refuses_the_instances_that_advise_refuses():
    request = {"model": "1.3B", "library": "smp-v2"}
    with pytest.raises(smpa.errors.AdvisorError, match="not on AWS's list for SMP v2"):
        call("estimate", {**request, "instance": "ml.p3.16xlarge"}, Caller())
    answer = call("estimate", {**request, "instance": "ml.g5.12xlarge"}, Caller())
    assert "not in a confirmed AWS list for SMP v2" in answer["notes"][-1]


def test_a_free_lever_is_pulled_where_it_brings_something_and_is_named():
    long = smpa.advise("qwen2.5-7b", "ml.p4d.24xlarge", sequence_length=32_768, training="fine-tuning")
    plain = smpa.estimate(long.model, long.cluster, replace(long.job, loss="plain"), long.plan)
    assert long.estimate.fits
    assert plain.needed_gib > 2 * long.estimate.needed_gib
    small = smpa.advise("7B", "ml.g5.12xlarge", instance_count=4)
    plain = smpa.advise("7B", "ml.g5.12xlarge", instance_count=4, loss="plain")
    assert small.estimate.tokens_per_second > 3 * plain.estimate.tokens_per_second
    for advice in (long, small):
        assert "loss='chunked' is part of this plan" in advice.because
        assert not any("plain loss" in text for text in advice.defaults)
        assert "chunk" in advice.script_cell()
    assert smpa.advise("llama-3.1-8b", P5, instance_count=4).job.loss == "plain"  # where it brings nothing


def test_the_largest_of_each_fits_and_is_an_answer_on_every_surface():
    usual = {"model": "1.3B", "library": "fsdp"}
    advice = smpa.advise(cluster="ml.g5.12xlarge", **usual)
    found, length = advice.largest(), advice.job.sequence_length
    request = {**usual, "instance": "ml.g5.12xlarge", "details": ["largest"]}
    assert call("advise", request, Caller())["largest"] == asdict(found)
    for changes in (
        {"sequence_length": found.sequence_length},
        {"batch_size": found.batch_size},
        {"model": found.parameters, "sequence_length": length},
    ):
        assert smpa.advise(cluster="ml.g5.12xlarge", **usual | changes).estimate.fits
    for changes in ({"batch_size": found.batch_size + 1}, {"sequence_length": found.sequence_length + 1024}):
        with pytest.raises(smpa.errors.NoPlanFitsError):
            smpa.advise(cluster="ml.g5.12xlarge", **usual | changes)
