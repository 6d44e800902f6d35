"""The precision of a profile: the job's own, in the form of its library."""

from fractions import Fraction

import pytest

from smp_advisor import Job, Plan
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.layout import layout_of
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.profiling.parts import Segment
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.precision import PRECISIONS, precision_of_job
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
