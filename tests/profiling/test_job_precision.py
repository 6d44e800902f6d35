"""Precision and attention of a profile: the job's own, in the form and the versions of its library."""

from fractions import Fraction

import pytest

from smp_advisor import Job, Plan
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import libraries
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.libraries.version import installed_by, transformers_families
from smp_advisor.profiling import profile
from smp_advisor.profiling.parts import Segment
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.precision import PRECISIONS, kernel_for, precision_of_job
from smp_advisor.profiling.profiled_model import read_model
from smp_advisor.workload import Model
from smp_advisor.workload.settings import families
from tests.deferred import Deferred

with_gathered_parameters = Deferred("smp_advisor.profiling.trace", "with_gathered_parameters")


@pytest.mark.parametrize(
    ("library", "precision"),
    [(None, "mixed"), ("fsdp", "mixed"), ("smp-v2", "mixed"), ("smp-v1", "fp16"), ("ddp", "amp")],
)
def test_a_job_trains_in_the_form_of_its_library(library, precision):
    assert precision_of_job(Job(), library=library) == precision


def test_an_own_precision_and_a_plan_decide():
    assert precision_of_job(Job(precision="fp32"), library="fsdp") == "fp32"
    assert precision_of_job(Job(precision="bf16", state_precision="16-bit")) == "bf16"
    assert precision_of_job(Job(), plan=Plan(library="fsdp", precision="fp32")) == "fp32"
    assert precision_of_job(Job(), plan=Plan(fp16=True), library="ddp") == "fp16"
    assert precision_of_job(Job(), requested="amp", library="fsdp") == "amp"
    with pytest.raises(AdvisorError, match="half"):
        precision_of_job(Job(), requested="half")


@pytest.mark.parametrize("name", [name for name in LIBRARIES if get_library(name).framework == "pytorch"])
def test_the_bytes_of_a_parameter_are_those_of_the_cost_model(name):
    record = get_library(name)
    precision = PRECISIONS[record.half_precision]
    state = layout_of([Plan(library=name)], Job(precision=record.default_precision)).state_bytes
    total = precision.parameter_bytes + precision.gradient_bytes + precision.state_bytes()
    assert total == state.total_bytes


@pytest.mark.torch
def test_gathered_parameters_leave_and_gradients_stay():
    forward = Segment(phase="forward", change_bytes=constant(0), rise_bytes=constant(10))
    heads = Segment(phase="backward", change_bytes=constant(200), rise_bytes=constant(300))
    layers = Segment(phase="backward", change_bytes=constant(600), rise_bytes=constant(700))
    composed = with_gathered_parameters([forward, heads, layers], gathered_bytes=50, gradient_bytes=1600)
    assert sum(part.change_bytes(1, 1) for part in composed) == 1600
    assert [part.rise_bytes(1, 1) for part in composed] == [60, 500, 1300]


def constant(value):
    return Polynomial(((Fraction(value),),))


T5 = {"model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "num_layers": 3, "vocab_size": 512}
LATER = {"electra", "t5"}
"""Families that got fused attention with a release that only the newest images have."""
SETTINGS = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""Settings without a default."""


@pytest.mark.torch
def test_formulas_and_profiles_agree_which_families_run_fused_attention():
    """For every family with formulas that the generated script can build."""
    from transformers import AutoConfig

    for family in families().keys() & transformers_families().keys():
        model = Model.from_config(AutoConfig.for_model(family, **SETTINGS.get(family, {})))
        fusible = all(attention.fusible for group in model.groups for attention in group.block.attentions)
        for library in ("fsdp", "ddp", "smp-v2"):
            installed = installed_by(library, family).transformers_version
            is_fused = transformers_families()[family].is_fused(installed)
            # These formulas are those of eager attention, also where a new release runs it fused: never less.
            assert is_fused == fusible or (is_fused and family in LATER), family


def test_every_library_has_installed_versions():
    for library in libraries():
        job = installed_by(library.name, "gpt2")
        assert job.framework_version
        assert get_library(job.library) is library


@pytest.mark.torch
def test_the_kernel_follows_the_versions_of_the_job():
    t5, gpt2 = read_model(T5), read_model({"model_type": "gpt2"})
    for library, version in (("fsdp", "2.8.0"), ("smp-v2", None)):
        assert kernel_for(t5, library=library, library_version=version).is_only
        assert kernel_for(gpt2, library=library, library_version=version).name == "fused"
        assert "transformers 4.46.3" in kernel_for(gpt2, library=library, library_version=version).reason
    newest = kernel_for(t5, library="fsdp")
    assert newest.name == "fused"
    assert "transformers 5.23.0" in newest.reason
    assert kernel_for(gpt2, library="smp-v1").reason == "PyTorch 1.13.1 of SMP v1's container has no fused attention"
    old = kernel_for(gpt2, library="fsdp", library_version="2.1.0")
    assert old.is_only
    assert "transformers 4.37.2 (PyTorch 2.1.0)" in old.reason
    assert kernel_for(t5, requested="fused", library="fsdp").reason == "as requested"


@pytest.mark.torch
def test_a_t5_saves_the_scores_that_its_formulas_count():
    """The release here has fused attention for T5 and a softmax in 16 bits; that of the job has neither."""
    traced = profile(T5, stages=("trace",), precision="bf16", library="smp-v2", sequence_length=512)
    assert traced.attention == "eager"
    assert not traced.fusible_attention
    assert "transformers 4.46.3" in traced.details()
    without_blocks = profile(T5 | {"num_layers": 2}, stages=("trace",), library="smp-v2", sequence_length=32)
    assert "transformers 4.46.3" in without_blocks.details()
    model = Model.from_profile(traced)
    assert "no fused attention" in model.note
    formula = Model.from_config(T5)
    for group, expected in zip(model.groups, formula.groups, strict=True):
        assert group.block.attentions[0].score_bytes == pytest.approx(expected.block.attentions[0].eager_score_bytes(2))
