"""Verdicts of a profile, and the advice, the report, the widget and the cells that show them."""

import dataclasses
import json
import re

import pytest

import smp_advisor
from smp_advisor.notebook.advisor import Advisor
from smp_advisor.profiling.result import Profile
from smp_advisor.profiling.scaled.result import ScaledRun
from smp_advisor.workload import Job, Model
from tests.profiling.shared import profiled

pytestmark = pytest.mark.torch

SEQUENCE = 256


@pytest.fixture(scope="module")
def profile():
    return profiled({"model_type": "gpt2", "n_layer": 2}, precision="fp16", sequence=SEQUENCE)


def copy(losses, **values):
    fields = {
        "name": "GPT-2", "reductions": (), "parameter_count": 1_000_000, "losses": tuple(losses), "sequence": 128,
        "inputs": "", "trained": 10, "without_gradient": (), "frozen": 0, "tied": (), "comparisons": (), "notes": (),
    }  # fmt: skip
    return ScaledRun(**fields | values)


@pytest.mark.parametrize(
    ("losses", "values", "problem"),
    [
        ((4.377, 4.352, 4.281e8), {}, "explodes"),
        ((-3.0, -3.5, 60.0), {}, "explodes"),
        ((4.377, float("nan"), 4.1), {}, "not a number"),
        ((4.377, 4.3, 4.2), {"without_gradient": ("wte",)}, "gradients are missing for 1 of 11: wte"),
    ],
)
def test_a_copy_that_does_not_train(losses, values, problem):
    run = copy(losses, **values)
    assert not run.ok
    assert problem in run.summary
    outcome = "trains only in part" if "without_gradient" in values else "does not train correctly"
    assert outcome in run.summary
    (verdict,) = Profile(
        name="GPT-2", source="module", precision="fp16", attention="fused", batch=1, sequence=1, scaled=run
    ).verdicts
    assert verdict == f"Scaled copy: {run.summary}"


@pytest.mark.parametrize(
    "losses", [(4.377, 4.352, 4.36), (0.7, 0.9, 0.6), (0.69, 3.3), (-3.0, -3.5, 12.0), (1e-6, 5e-7, 4e-4)]
)
def test_a_copy_whose_loss_varies_still_trains(losses):
    assert copy(losses).ok


def test_a_sound_profile_has_no_verdict(profile):
    sound = dataclasses.replace(profile, scaled=copy((4.0, 3.9)))
    assert sound.verdicts == ()
    advice = smp_advisor.advise(sound, "ml.p4d.24xlarge", sequence_length=SEQUENCE)
    assert advice.model.verdicts == ()
    assert "Warning:" not in advice.cell(sdk="v2")


def test_verdicts_reach_advice_report_widget_and_cells(profile):
    failure = "The trace failed, and the other results were kept."
    found = dataclasses.replace(profile, scaled=copy((4.377, 4.352, 4.281e8)), failures=(failure,))
    assert found.verdicts[0] == failure
    assert "→ 4.281e+08" in found.verdicts[1]
    assert Model.from_profile(json.loads(json.dumps(found.as_dict()))).verdicts == found.verdicts
    assert Profile.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    advice = smp_advisor.advise(found, "ml.p4d.24xlarge", library="fsdp", sequence_length=SEQUENCE)
    assert advice.warnings[:2] == found.verdicts
    for text in (advice.report(), advice.cell(sdk="v2"), advice.cell(sdk="v3"), advice.export("slurm")):
        assert all(verdict in " ".join(text.replace("#", " ").split()) for verdict in found.verdicts)
    assert "explodes" in Advisor(advice)._repr_mimebundle_()[0]["text/html"]
    assert "explodes" in str(found)
    assert "explodes" in found._repr_html_()


def test_low_confidence_of_flops_is_a_verdict(profile):
    unsure = tuple(
        dataclasses.replace(entry, confidence="low", note="aten.lstm has no formula")
        if entry.figure == "FLOPs"
        else entry
        for entry in profile.provenance
    )
    (verdict,) = dataclasses.replace(profile, provenance=unsure).verdicts
    assert "aten.lstm" in verdict


def test_text_of_a_name_is_no_code_in_the_cell(profile):
    hostile = copy((4.0, 50.0), name='x"\nimport os; os.abort()\n# fmt: off')
    advice = smp_advisor.advise(
        dataclasses.replace(profile, scaled=hostile), "ml.p4d.24xlarge", library="fsdp", sequence_length=SEQUENCE
    )
    for text in (advice.cell(sdk="v2"), advice.export("slurm")):
        lines = [line for line in text.splitlines() if "os.abort" in line]
        assert lines
        assert all(line.startswith("# ") for line in lines)


def test_advice_has_the_sequence_length_of_the_profile_unless_it_is_set(profile):
    advice = smp_advisor.advise(profile, "ml.p4d.24xlarge", library="ddp")
    assert advice.job.sequence_length == SEQUENCE != Job().sequence_length
    assert f"sequence length {SEQUENCE:,} tokens (as profiled)" in advice.defaults
    advice.change(instance_count=2)
    assert advice.job.sequence_length == SEQUENCE
    assert smp_advisor.advise(profile, "ml.p4d.24xlarge", library="ddp", sequence_length=64).job.sequence_length == 64
    whole_job = smp_advisor.advise(profile, "ml.p4d.24xlarge", Job(sequence_length=64), library="ddp")
    assert whole_job.job.sequence_length == 64
    assert all("sequence length" not in text for text in whole_job.defaults)


def test_a_class_with_another_head_is_trained_with_its_labels():
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertForTokenClassification(transformers.BertConfig(**sizes, vocab_size=256))
    found = smp_advisor.profile(model, sequence_length=32)
    assert found.inputs == "input_ids, labels (from the configuration)"
    assert found.scaled.ok
    assert found.verdicts == ()


@pytest.mark.parametrize(("batch", "phase"), [(1, "optimizer step"), (64, "backward pass")])
def test_the_memory_on_one_gpu_is_the_sum_of_its_named_parts(profile, batch, phase):
    lines = str(dataclasses.replace(profile, batch=batch)).splitlines()
    line = next(line for line in lines if "Memory on one GPU" in line)
    total, *parts = (
        float(number) * {"KiB": 2**-10, "MiB": 1, "GiB": 2**10}[unit]
        for number, unit in re.findall(r"([\d.]+) ([KMG]iB)", line)
    )
    assert f"in the {phase}: " in line
    assert total == pytest.approx(sum(parts), rel=2e-3)
