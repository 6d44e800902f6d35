"""The ordered explanation: order, decisions, and that each figure is what the cost model says."""

import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given

from smp_advisor.advice.explanation import explain
from smp_advisor.advice.practices import order
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.wording import fit, fits, gib, step_time, throughput
from smp_advisor.libraries import Plan
from smp_advisor.workload import Model
from smp_advisor.workload.job import Job
from tests.guidance.runs import TEN_B, any_run, llama, model, planned_run

P4D = "ml.p4d.24xlarge"
STAGES = {"pipeline_parallel_degree": 2, "microbatches": 4, "active_microbatches": 2}
SIXTY = replace(TEN_B, tensor_parallel_degree=8, batch_size=56, **STAGES)


def by_technique(run):
    return {step.technique: step for step in explain(run)}


def uses(plan):
    """What a reader of the plan would say it uses."""
    return {
        "optimizer_state_sharding": plan.shard_optimizer_state or plan.sharded_data_parallel_degree > 1,
        "activation_checkpointing": bool(plan.activation_checkpointing),
        "tensor_parallelism": plan.tensor_parallel_degree > 1,
        "pipeline_parallelism": plan.pipeline_parallel_degree > 1,
        "offloading": plan.offload_activations,
        "batch": True,
    }


MEMORY = re.compile(r"needs (?:the same )?([\d,.]+ GiB) per GPU(?: \(vs ([\d,.]+ GiB)\))?")
RANGE = r" \([\d,.]+ to [\d,.]+\)"
TIME = re.compile(
    rf"takes ([\d,.]+) (m?s){RANGE} per step, vs ([\d,.]+) (m?s){RANGE}: (?:about the same|[\d.,]+ % (\w+))"
)


def in_seconds(number, unit):
    return float(number.replace(",", "")) * (0.001 if unit == "ms" else 1)


@pytest.mark.slow
@given(any_run())
@example(planned_run(model("10 B"), Cluster(P4D, 16), TEN_B))
@example(planned_run(model("30 B"), Cluster(P4D, 32), SIXTY))
def test_any_plan_is_explained_in_aws_s_order_with_true_figures_and_verdicts(run):
    steps, used = explain(run), uses(run.plan)
    assert tuple(step.technique for step in steps) == order()
    assert [step.order for step in steps] == list(range(1, 8))
    for step in steps:
        assert step.source_url.startswith("https://docs.aws.amazon.com/sagemaker/latest/dg/")
        assert step.source_title
        assert step.trade_off
        assert step.details.endswith(".")
    for step in steps[1:]:
        assert (step.decision == "used") == used[step.technique], step
        if step.alternative is not None and step.technique not in {"batch", "optimizer_state_sharding"}:
            assert uses(step.alternative)[step.technique] != used[step.technique]
        compares_with_its_own_figures(run, step)
    for step in steps[1:6]:
        if step.alternative is not None:
            has_the_figures_and_the_verdict_of_the_estimates(run, step)


def compares_with_its_own_figures(run, step):
    own = gib(run.estimate.needed_gib)
    for there, here in MEMORY.findall(step.details):
        assert here == own if here else there == own
    for after, after_unit, before, before_unit, direction in TIME.findall(step.details):
        assert step_time(run.estimate).startswith(f"{before} {before_unit} (")
        slower = in_seconds(after, after_unit) - in_seconds(before, before_unit)
        assert {"longer": slower >= 0, "shorter": slower <= 0, "": True}[direction]


def has_the_figures_and_the_verdict_of_the_estimates(run, step):
    """The cost model is asked independently of the explanation."""
    job = replace(run.job, global_batch_size=None, precision=step.alternative.precision)
    other = estimate(run.model, run.cluster, job, step.alternative)
    for show in (lambda of: gib(of.needed_gib), step_time, throughput):
        assert show(step.outcome) == show(other)
    if other.global_batch_size != run.estimate.global_batch_size:
        assert f"a global batch of {other.global_batch_size:,} samples instead of" in step.details
        assert run.job.global_batch_size is None
    if step.technique == "optimizer_state_sharding":
        return
    least = run.min_fit_probability
    if step.decision == "used":
        verdict = re.search(r"\. It (does not fit|fits with a prob|fits with)", step.details)
        assert (verdict[1] == "fits with") == fits(other, least)
    gain = other.samples_per_second / run.estimate.samples_per_second - 1
    for words, holds in (
        (r"training is (much |slightly )?slower|Training would be (much )?slower", gain < -0.005),
        (r"is as fast\.|would be as fast", abs(gain) <= 0.005),
        (r"and is faster|would be faster", gain > 0.005),
    ):
        if re.search(words, step.because):
            assert holds, step
            assert run.fits
            assert fits(other, least)
    if "The plan also fits" in step.because or "Not required" in step.because:
        assert fits(other if step.decision == "used" else run.estimate, least)


def test_figures_without_spare_and_uneven_chances_add_up():
    """Peak and usable memory are the same to the last bits, which say nothing about fitting."""
    full = 0
    plan = Plan(tensor_parallel_degree=2, pipeline_parallel_degree=2, microbatches=4, batch_size=4)
    for batch, active in product(range(1, 13), range(1, 5)):
        wide = replace(plan, batch_size=4 * batch, active_microbatches=active)
        job = Job(sequence_length=512, precision="fp32")
        run = planned_run(model("wide vocabulary"), Cluster("ml.p3dn.24xlarge", 1), wide, job=job, least=0.5).estimate
        if abs(run.memory.peak.total_gib + run.memory.peak.cached_gib - run.usable_gpu_memory_gib) > 1e-9:
            continue
        full += 1
        assert run.needed_gib < run.usable_gpu_memory_gib
        assert fit(run, 0.5) == f"fits with {gib(run.usable_gpu_memory_gib - run.needed_gib)} to spare"
    assert full > 3

    plan = Plan(pipeline_parallel_degree=2, microbatches=4, batch_size=4, active_microbatches=1)
    for batch in range(1, 40):
        wide = replace(plan, batch_size=4 * batch)
        run = planned_run(model("wide vocabulary"), Cluster("ml.p3dn.24xlarge", 1), wide).estimate
        if 0.1 < run.fit_probability < 0.5:
            break
    assert fit(run, 0.5).startswith("does not fit")
    assert fit(run, 0.1).startswith(f"fits with a probability of {run.fit_probability:.1%}".replace("%", " %"))
    assert f"{gib(-run.headroom_gib)} over the" in fit(run, 0.1)


NODE, TWO, SIXTEEN, THIRTY_TWO = (Cluster(P4D, nodes) for nodes in (1, 2, 16, 32))
G4DN = Cluster("ml.g4dn.12xlarge", 4)
EIGHT = replace(TEN_B, tensor_parallel_degree=8)
SHARDED = Plan(sharded_data_parallel_degree=8, fp16=True, batch_size=8)
TENSOR = Plan(tensor_parallel_degree=2, fp16=True, batch_size=1)


@pytest.mark.parametrize(
    ("of", "cluster", "plan", "technique", "words"),
    [
        (
            "30 B",
            THIRTY_TWO,
            replace(SIXTY, batch_size=24, active_microbatches=4),
            "tensor",
            "3 microbatches instead of 4",
        ),
        (
            "10 B",
            TWO,
            replace(SHARDED, fp16=False, bf16=True, activation_checkpointing="each"),
            "optimizer_state_sharding",
            "used: Sharded data parallelism.*fp16, because bf16 needs sharded data parallelism",
        ),
        ("10 B", G4DN, EIGHT, "tensor", "not within the 4 GPUs"),
        ("10 B", G4DN, TEN_B, "tensor", "^(?!.*not within)"),
        ("30 B", THIRTY_TWO, SIXTY, "pipeline", "on different nodes"),
        ("30 B", THIRTY_TWO, replace(SIXTY, tensor_parallel_degree=4), "pipeline", "within a node"),
        ("30 B", THIRTY_TWO, SIXTY, "batch", "multiple of 4, including the last batch"),
        ("llama", TWO, SHARDED, "pipeline", "not possible: .*excludes pipeline parallelism"),
        ("llama", TWO, SHARDED, "tensor", "not possible: .*not those of llama"),
        ("llama", TWO, SHARDED, "offloading", "not possible: "),
        ("wide vocabulary", NODE, TENSOR, "tensor", "smp.set_tensor_parallelism on these modules"),
        ("llama", NODE, TENSOR, "tensor", "requires that the script registers a distributed form of llama"),
    ],
)
def test_what_moves_along_is_excluded_or_left_to_the_script_is_named(of, cluster, plan, technique, words):
    run = planned_run(llama() if of == "llama" else model(of), cluster, plan)
    steps = by_technique(run)
    step = steps.get(f"{technique}_parallelism") or steps[technique]
    assert re.search(words, f"{step.decision}: {step.title}. {step.details}")


def test_a_fixed_batch_is_as_requested_and_a_tip_is_told_once():
    job = Job(sequence_length=512, global_batch_size=1280)
    step = by_technique(planned_run(model("10 B"), SIXTEEN, TEN_B, job=job))["batch"]

    assert "Twice the batch" not in step.details
    assert "as requested" in step.details

    run = planned_run(model("1.5 B"), NODE, Plan(fp16=True, batch_size=4, shard_optimizer_state=True))

    (step,) = (step for step in explain(run) if "AWS's tip applies" in step.details)
    assert step.decision == "not used"
    assert step.outcome.samples_per_second <= run.estimate.samples_per_second


def test_instances_are_compared_on_as_many_gpus():
    run = planned_run(model("10 B"), Cluster(P4D, 16), TEN_B)
    step = by_technique(run)["instance"]
    there = estimate(run.model, Cluster("ml.p4de.24xlarge", 16), run.job, run.plan)

    assert step.decision == "used"
    assert "ml.p4de.24xlarge" in step.details
    assert step_time(there) in step.details
    without_efa = planned_run(model("10 B"), Cluster("ml.p3.16xlarge", 16), TEN_B)  # NVLink alone is not AWS's advice
    assert by_technique(without_efa)["instance"].decision == "not used"


def test_under_the_objective_headroom_memory_is_the_reason():
    small = Model.from_shape(layers=4, hidden=1024, heads=16, vocab=50_000, max_positions=1024)
    run = planned_run(small, Cluster(P4D, 1), Plan(fp16=True, sharded_data_parallel_degree=8, batch_size=1))
    usual, roomy = (
        by_technique(replace(run, objective=objective))["optimizer_state_sharding"].details
        for objective in ("throughput", "headroom")
    )
    assert "The plan also fits without" in usual
    assert "frees memory, which is the objective" in roomy
