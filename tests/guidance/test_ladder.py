"""Ladders of plans."""

from dataclasses import replace
from itertools import pairwise, product
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given

import smp_advisor as smpa
from smp_advisor.advice.explanation import explain
from smp_advisor.advice.ladder import COLUMNS, _decision, climb, ladder_html, reasons_of, unused_techniques
from smp_advisor.advice.variants import vary
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.wording import SAME, fits
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.groups import divisors
from smp_advisor.search.rank import NEAR_BEST
from smp_advisor.workload import Job
from tests.guidance import runs
from tests.guidance.runs import any_run, model, planned_run

P4D = Cluster("ml.p4d.24xlarge", 16)
TEN_B = planned_run(model("10 B"), P4D, runs.TEN_B)


def ladder(run):
    return climb(run, explain(run))


def test_aws_s_row_of_10_billion_is_climbed_in_aws_s_order():
    rungs = ladder(TEN_B).rungs
    assert [rung.title for rung in rungs] == [
        "the entire model on each GPU",
        "optimizer-state sharding",
        "activation checkpointing",
        "tensor parallelism over 4 GPUs",
    ]
    needed = [rung.needed_gib for rung in rungs]
    assert needed == sorted(needed, reverse=True)
    assert [rung.fits for rung in rungs] == [False, False, False, True]
    assert [rung.decision for rung in rungs][1:] == ["still too big", "still too big", "fits from here"]
    assert rungs[-1].step_seconds == TEN_B.estimate.step_seconds
    assert rungs[0].step_seconds is None


@pytest.mark.slow
@given(any_run())
def test_a_ladder_of_any_plan_ends_with_it_and_is_true(run):
    steps = explain(run)
    result = climb(run, steps)
    assert climb(run, explain(run, unused_techniques(run))) == result
    rungs_are_estimates(run, result)
    decisions_follow_from_the_rungs(run, result)
    for step in steps:
        if step.outcome is not None and step.technique not in {"batch", "optimizer_state_sharding"}:
            the_short_reason_is_true(run, step)
    what_is_required_is_replaced_by_no_sharding_and_no_microbatches(run, steps)


def rungs_are_estimates(run, result):
    assert result.rungs[-1].plan == run.plan
    assert result.rungs[-1].estimate == run.estimate
    for rung in (*result.rungs, *result.unused):
        if rung.plan is None or rung.plan.precision != run.plan.precision:
            continue
        job = Job(sequence_length=run.job.sequence_length, precision=run.job.precision)
        expected = estimate(run.model, run.cluster, job, rung.plan)
        assert rung.needed_gib == pytest.approx(expected.needed_gib)
        assert rung.fits == fits(expected, run.min_fit_probability)
        assert (rung.step_seconds is None) == (not rung.fits)
        if expected.global_batch_size != run.estimate.global_batch_size:
            assert f"{expected.global_batch_size:,} samples instead of" in rung.because


def decisions_follow_from_the_rungs(run, result):
    for before, rung in pairwise(result.rungs):
        match rung.decision:
            case "fits from here":
                assert rung.fits
                assert not before.fits
            case "still too big":
                assert not rung.fits
            case "faster":
                assert rung.estimate.step_seconds < before.estimate.step_seconds
            case "used for headroom":
                assert rung.needed_gib < before.needed_gib
    for rung in result.unused:
        if rung.decision.endswith(("faster", "slower")):
            change = rung.estimate.samples_per_second / run.estimate.samples_per_second - 1
            assert (change > 0) == rung.decision.endswith("faster")
            assert abs(change) >= SAME
        too_large = rung.decision in {"does not fit", "too close to the limit"}
        assert too_large == (rung.estimate is not None and not rung.fits)
        if rung.decision == "too close to the limit":
            assert rung.estimate.headroom_gib >= 0


def the_short_reason_is_true(run, step):
    gain = step.outcome.samples_per_second / run.estimate.samples_per_second - 1
    fitting = fits(step.outcome, run.min_fit_probability)
    text = step.because
    refusals = ("does not fit without", "would not fit", "too close to the memory limit")
    assert any(words in text for words in refusals) == (not fitting), text
    if text.startswith("Required"):
        assert run.fits
    if "about as fast" in text:
        assert abs(gain) <= NEAR_BEST
    elif "as fast" in text:
        assert abs(gain) <= SAME
    elif "slower" in text:
        assert gain < 0
    elif "faster" in text:
        assert gain > 0


def what_is_required_is_replaced_by_no_sharding_and_no_microbatches(run, explained):
    steps = {step.technique: step for step in explained}
    for technique, off in (
        ("tensor_parallelism", {"tensor_parallel_degree": 1}),
        ("activation_checkpointing", {"activation_checkpointing": False}),
    ):
        if not steps[technique].because.startswith("Required"):
            continue
        for degree, parts in product(divisors(run.cluster.gpus), (1, 2, 4, 8, 16)):
            other = {} if degree == 1 else {"shard_optimizer_state": False}
            form = vary(run, **off, **other, sharded_data_parallel_degree=degree, microbatches=parts)
            if form.plan is not None:
                value = estimate(run.model, run.cluster, form.job, form.plan)
                assert not fits(value, run.min_fit_probability), (degree, parts)


def test_comparisons_raise_the_sharding_degree_where_that_is_enough():
    plan = Plan(
        tensor_parallel_degree=2,
        sharded_data_parallel_degree=2,
        prescaled_batch=True,
        fp16=True,
        batch_size=16,
        activation_checkpointing="each",
    )
    run = planned_run(model("10 B"), P4D, plan, job=Job(sequence_length=512, precision="fp16"))
    assert not fits(estimate(run.model, P4D, run.job, vary(run, tensor_parallel_degree=1).plan), 0.95)
    step = {step.technique: step for step in explain(run)}["tensor_parallelism"]
    assert step.alternative.sharded_data_parallel_degree > 2
    assert fits(step.outcome, 0.95)
    assert f"sharding over {step.alternative.sharded_data_parallel_degree} GPUs instead of 2" in step.details
    others = {rung.short_title: rung.plan for rung in ladder(run).unused if "sharding" in rung.short_title}
    degrees = {
        title: (other.sharded_data_parallel_degree, other.shard_optimizer_state) for title, other in others.items()
    }
    assert degrees == {"sharding over all GPUs": (64, False), "sharding only the optimizer state": (1, True)}


@pytest.mark.parametrize(
    "plan",
    [
        Plan(tensor_parallel_degree=2, batch_size=4, fp16=True),
        Plan(library="smp-v2", hybrid_shard_degree=8, precision="bf16"),
        Plan(library="fsdp", precision="bf16", activation_checkpointing="each"),
        Plan(library="ddp", precision="bf16", gradient_accumulation_steps=2),
        Plan(library="smp-v1-tensorflow", partitions=2, microbatches=2, batch_size=2, horovod=True),
        Plan(library="training-compiler", precision="fp16"),
    ],
    ids=lambda plan: plan.library,
)
def test_every_library_has_a_ladder_for_any_plan(plan):
    old = {"family": "gpt2"} if plan.library == "training-compiler" else {}
    instance = "ml.p3.16xlarge" if old else "ml.p4d.24xlarge"
    advice = smpa.advise("125M", instance, library=plan.library, sequence_length=512, **old)
    assert advice.ladder().rungs[-1].plan == advice.plan
    result = advice.ladder(plan)
    assert result.rungs[-1].plan == plan
    assert result.rungs[-1].decision
    assert all(title in str(result) for title in COLUMNS)


def test_alternatives_have_ladders_and_all_forms_the_same_rungs():
    advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="smp-v1", family="gpt2", sequence_length=512)
    table = advice.alternatives
    for row in range(3):
        last = advice.ladder(row).rungs[-1]
        assert last.plan.tensor_parallel_degree == table["tensor_parallel_degree"][row]
        assert last.needed_gib == pytest.approx(table["needed_gib"][row])
    with pytest.raises(PlanError, match="rows 0 to"):
        advice.ladder(len(table))
    with pytest.raises(PlanError, match="multiple"):
        advice.ladder(Plan(pipeline_parallel_degree=3, microbatches=3, batch_size=3))

    result = ladder(TEN_B)
    frame = result.frame()
    assert frame["used"].sum() == len(result.rungs)
    assert len(frame) == len(result.rungs) + len(result.unused)
    root = ET.fromstring(result._repr_html_())
    rows = ["".join(head.itertext()) for head in root.iter("th") if head.get("scope") == "row"]
    assert len(rows) == len(frame)
    for rung, row in zip((*result.rungs, *result.unused), rows, strict=True):
        assert rung.title in str(result)
        assert rung.title.lower() in row.lower()
        assert rung.decision in str(result)
        assert rung.decision in row


@pytest.mark.parametrize(
    ("because", "shown"),
    [
        ("The plan would not fit, either, with it.", []),
        ("The plan would not fit, either, (with <2> microbatches).", ["With <2> microbatches."]),
        ("The plan would fit (with fp16).", ["With fp16."]),
        ("Training would be slower (with fp16).", ["Training would be slower (with fp16)."]),
    ],
)
def test_a_reason_is_a_sentence_that_does_not_repeat_the_decision(because, shown):
    result = ladder(TEN_B)
    table = ladder_html(replace(result, unused=(replace(result.unused[0], because=because),)))
    notes = [note.text for note in ET.fromstring(table).iter("span") if note.get("class") == "smp-note"]
    assert notes[1:] == shown


def test_decisions_name_what_a_technique_does_to_the_fit():
    result, steps = ladder(TEN_B), explain(TEN_B)
    close = replace(result.rungs[2], estimate=TEN_B.estimate, fits=False)
    root = ET.fromstring(ladder_html(replace(result, rungs=(*result.rungs[:2], close)), reasons_of(steps)))
    rows = root.findall("tbody/tr")
    assert [row.get("class") for row in rows[:3]] == ["smp-rung-over", "smp-rung-over", "smp-rung-risk"]
    assert "the full plan" in "".join(rows[1].itertext()).lower()

    over, fitting = ladder(TEN_B).rungs[0], ladder(TEN_B).rungs[-1]
    assert _decision(fitting, over.estimate, fitting=False) == "used, no longer fits"
    assert _decision(over, fitting.estimate, fitting=False) == "used, too close to the limit"
    assert _decision(over, over.estimate, fitting=False) == "still too big"
