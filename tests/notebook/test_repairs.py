"""No dead ends: every position leads to a plan, or has a reason and a repair."""

from __future__ import annotations

import pytest

from smp_advisor import advise
from smp_advisor.advice.live import control_state
from smp_advisor.advice.live.controls import controls, repairs
from smp_advisor.advice.live.settings import plan_of, settings_of
from smp_advisor.libraries import Plan
from smp_advisor.notebook.view_state import look_ahead

from .advice import make_advice

SHARDED = Plan(sharded_data_parallel_degree=8, bf16=True, batch_size=16, activation_checkpointing="each")


@pytest.fixture(scope="module")
def sharded():
    """Sharding in bf16, which excludes every pipeline and every plan without sharding."""
    return make_advice(SHARDED, precision="bf16")


@pytest.fixture(scope="module")
def experts():
    return advise("mixtral-8x7b", "ml.p5.48xlarge", instance_count=4, library="smp-v2", precision="fp32")


def test_every_position_leads_to_a_plan_or_has_a_reason_with_repairs_that_lead_to_it(sharded, experts):
    for advice in (sharded, experts):
        base = settings_of(advice.plan, advice.job)
        unreachable = [
            (name, entry) for name, row in look_ahead(advice, base)["by"].items() for entry in row if "problem" in entry
        ]
        assert len(unreachable) > 1
        for name, entry in unreachable:
            value = entry["settings"][name]
            offers = repairs(advice, base, name, value)
            assert offers, (name, value)
            for offer in offers:
                assert offer.settings[name] == value
                assert plan_of(offer.advice, offer.settings) == offer.plan
                state = control_state.apply(control_state.recommended(advice), offer.settings)
                assert (state.problem, state.plan, state.estimate) == ("", offer.plan, offer.estimate)


def test_a_pipeline_without_sharding_is_offered_as_an_instruction_with_its_effect(sharded):
    refused = control_state.move(control_state.recommended(sharded), "pipeline_parallel_degree", 8)
    assert "exclude each other" in refused.problem
    first = control_state.repairs_of(refused)[0]
    assert first["text"] == "Turn sharding off, train in fp16 and use pipeline parallel degree 8"
    assert first["effect"].endswith(" %")
    assert " of 39.4 GiB per GPU, fits; throughput \N{MINUS SIGN}" in first["effect"]
    assert control_state.repairs_of(control_state.recommended(sharded)) == []


def test_a_precision_that_excludes_the_pipeline_is_repaired_with_two_degrees(pipeline_advice):
    base = settings_of(pipeline_advice.plan, pipeline_advice.job)
    best = repairs(pipeline_advice, base, "precision", "bf16")[0]
    assert set(best.changed) == {"pipeline_parallel_degree", "sharding"}
    assert (best.plan.precision, best.plan.pipeline_parallel_degree) == ("bf16", 1)


def test_a_valid_move_between_invalid_settings_is_its_own_repair(sharded):
    refused = control_state.move(control_state.recommended(sharded), "pipeline_parallel_degree", 8)
    still = control_state.move(refused, "tensor_parallel_degree", 2)
    assert still.problem
    assert control_state.repairs_of(still)[0]["text"] == "Use tensor parallel degree 2"


def test_a_step_in_the_backward_pass_is_possible_once_nothing_accumulates():
    advice = make_advice(Plan(library="fsdp", gradient_accumulation_steps=4), precision="bf16", attention="fused")
    start = control_state.recommended(advice)
    assert control_state.move(start, "optimizer_step", "backward").problem
    once = control_state.move(start, "gradient_accumulation_steps", 1)
    assert control_state.move(once, "optimizer_step", "backward").problem == ""


def test_the_batch_reaches_sizes_that_do_not_fit():
    advice = make_advice(max_tokens_per_step=512 * 32 * 24)
    (batch,) = (c for c in controls(advice, settings_of(advice.plan, advice.job)) if c.name == "batch_size")
    fitting = [control_state.move(control_state.recommended(advice), c, v).estimate.fits for c, v in _all(batch)]
    assert max(batch.values) > 24
    assert fitting == sorted(fitting, reverse=True)
    assert fitting.count(False) == 2


def test_the_batch_has_a_position_for_the_largest_that_fits():
    advice = make_advice()
    (batch,) = (c for c in controls(advice, settings_of(advice.plan, advice.job)) if c.name == "batch_size")

    def likely(size):
        moved = control_state.move(control_state.recommended(advice), "batch_size", size)
        return moved.estimate.fit_probability >= advice.min_fit_probability

    largest = max(size for size in batch.values if likely(size))
    assert largest in range(57, 64)
    assert not likely(largest + 1)
    assert list(batch.values) == sorted(set(batch.values))


def _all(control):
    return [(control.name, value) for value in control.values]


def test_a_single_value_has_its_reason():
    advice = make_advice(global_batch_size=640)
    (batch,) = (c for c in controls(advice, settings_of(advice.plan, advice.job)) if c.name == "batch_size")
    assert batch.values == (20,)
    assert batch.fixed_because == "The job requires a global batch of 640 samples, which decides the batch size."
    dense = advise("1B", "ml.p4d.24xlarge", library="smp-v2", family="llama", sequence_length=512)
    (expert,) = (c for c in controls(dense, settings_of(dense.plan, dense.job)) if c.name == "expert_parallel_degree")
    assert expert.fixed_because == "SMP v2 has expert parallelism for the families mixtral only, not for llama."


def test_a_fixed_global_batch_is_kept_by_the_batch_and_its_accumulation():
    plan = Plan(library="fsdp", batch_size=2, gradient_accumulation_steps=4)
    advice = make_advice(plan, precision="bf16", attention="fused", global_batch_size=1024)
    state = control_state.move(control_state.recommended(advice), "batch_size", 8)
    assert (state.problem, state.plan.gradient_accumulation_steps) == ("", 1)
    assert state.estimate.global_batch_size == 1024
    (batch,) = (c for c in controls(advice, state.settings) if c.name == "batch_size")
    assert batch.values == (1, 2, 4, 8)


def test_the_precision_moves_plan_and_job_and_comes_back(sharded, advice):
    start = control_state.recommended(sharded)
    half = control_state.move(start, "precision", "fp16")
    assert (half.plan.precision, half.advice.job.precision, half.problem) == ("fp16", "fp16", "")
    assert control_state.move(half, "precision", "bf16").plan == start.plan
    refused = control_state.move(control_state.recommended(advice), "precision", "bf16")
    assert "bf16 works with sharded data parallelism only" in refused.problem
    assert control_state.repairs_of(refused)[0]["settings"]["sharding"].startswith("sharded_")
    first_sharded = control_state.move(control_state.recommended(advice), "sharding", "sharded_8")
    assert control_state.move(first_sharded, "precision", "bf16").plan.precision == "bf16"


def test_precisions_that_the_gpu_lacks_are_not_offered():
    advice = advise("350M", "ml.p3.16xlarge", library="ddp", sequence_length=512)
    (precision,) = (c for c in controls(advice, settings_of(advice.plan, advice.job)) if c.name == "precision")
    assert set(precision.values) == {"fp16", "fp32"}
