"""Joint draws of the constants, and spreads of the step time."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from smp_advisor import Calibration, Cluster, Job, Model, Plan
from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.costs.constants import constant, constants, overriding, peak_flops
from smp_advisor.costs.evaluate import estimate, seconds_columns
from smp_advisor.costs.observation import observed
from smp_advisor.costs.predictive import layout_draws
from smp_advisor.costs.uncertainty import (
    Doubt,
    comparison_spread,
    constant_draws,
    has_runs,
    spreads,
    step_time_factors,
)
from smp_advisor.libraries.layout import layout_of

KINDS = ["any", "pipeline, nodes", "sharded, nodes", "sharded, one node", "no such kind"]


def test_draws_are_around_the_committed_constants_and_the_same_at_every_call():
    for name, draws in constant_draws().items():
        constant = constants()[name]
        assert draws.shape == (64,)
        assert (draws > 0).all()
        # Draws come in pairs around the values; only shares stop at 1.
        assert abs(np.median(np.log(draws / constant.value))) < 0.35
        assert constant.value >= 1 or draws.max() <= 1
        assert constant.prior is not None


@pytest.mark.parametrize(
    "plans",
    [
        [Plan(library="smp-v1", pipeline_parallel_degree=4, batch_size=8, microbatches=8)],
        [Plan(library="smp-v1", pipeline_parallel_degree=p, batch_size=8, microbatches=2 * p) for p in (1, 4)],
        [Plan(library="fsdp", batch_size=batch) for batch in (1, 2, 4)],
    ],
    ids=["one plan", "pipelines", "sharded"],
)
def test_all_draws_at_once_are_one_draw_after_another(plans):
    model, cluster, job = (
        Model.from_parameters(1e9, family="gpt2"),
        Cluster("ml.p4d.24xlarge", 2),
        Job(precision="fp16"),
    )
    layout = layout_of(plans, job, cluster)
    with overriding({name: draws[:, np.newaxis] for name, draws in constant_draws().items()}):
        together = sum(seconds_columns(model, cluster, job, layout, (64,)).values())
    assert together.shape == (64, len(plans))
    for number in (0, 1, 40, 63):
        with overriding({name: float(draws[number]) for name, draws in constant_draws().items()}):
            alone = sum(seconds_columns(model, cluster, job, layout).values())
        assert together[number] == pytest.approx(alone, rel=1e-14)  # Python 3.12 and later add numbers more exactly


def test_another_thread_does_not_see_overridden_constants():
    name = "time.launch_seconds"
    with ThreadPoolExecutor(1) as threads, overriding({name: 1.0}):
        assert constant(name) == 1.0
        assert threads.submit(constant, name).result() == constants()[name].value
    assert constant(name) == constants()[name].value


@pytest.mark.parametrize("stack", ["megatron", "hf-sdpa", "no such stack"])
@pytest.mark.parametrize("kind", KINDS)
def test_spreads_and_intervals_belong_together(kind, stack):
    low, high = step_time_factors(Doubt())
    assert low < 1 < high
    total = np.hypot(*spreads(stack, kind))
    assert total > 0.02
    # The interval is not narrower than what the spreads of a normal error reach on either side together.
    assert np.log(high / low) > 2 * total


@pytest.mark.parametrize("part", list(Doubt.__dataclass_fields__))
def test_every_part_of_a_step_widens_its_interval_as_far_as_it_has_a_share(part):
    def width(share):
        low, high = step_time_factors(Doubt(**{part: share}))
        return high / low

    assert width(0) < width(0.5) < width(1)


def test_a_step_that_waits_for_the_host_or_the_network_has_a_wider_interval():
    def width(plan, cluster, parameters):
        low, high = estimate(Model.from_parameters(parameters, family="gpt2"), cluster, job, plan).step_factors
        return high / low

    job, large, small = Job(sequence_length=2048, precision="bf16"), 3e9, 2e7
    one, several = Cluster("ml.p4d.24xlarge", 1), Cluster("ml.g5.12xlarge", 4)
    plan = Plan(library="fsdp", batch_size=4, activation_checkpointing="each")
    assert width(Plan(library="ddp", batch_size=1), one, small) > width(plan, one, large)
    assert width(plan, several, large) > width(plan, one, large)
    assert not has_runs("NVIDIA L40S")
    assert has_runs("NVIDIA A100 80GB")


def test_errors_of_plans_of_one_kind_are_correlated_and_those_of_a_plan_are_its_interval():
    model, cluster, job = (
        Model.from_parameters(1e9, family="gpt2"),
        Cluster("ml.p4d.24xlarge", 2),
        Job(precision="bf16"),
    )
    plans = [Plan(library=library, batch_size=batch) for library in ("fsdp", "ddp") for batch in (2, 4)]
    layouts = [layout_of([plan], job, cluster) for plan in plans]
    draws = layout_draws(model, cluster, job, layouts)
    assert draws.shape == (64, 4)
    assert (draws == layout_draws(model, cluster, job, layouts)).all()
    logarithms = np.log(draws)
    same, other = np.corrcoef(logarithms.T)[0, 1], np.corrcoef(logarithms.T)[0, 2]
    assert same > other
    assert same > 0.5
    for column, plan in enumerate(plans):
        low, high = estimate(model, cluster, job, plan).step_seconds_range
        assert low < np.median(draws[:, column]) < high
        assert np.mean((draws[:, column] > low) & (draws[:, column] < high)) > 0.75


def test_doubt_about_unmeasured_collectives_goes_both_ways() -> None:
    """A factor that is 1 is no share: unmeasured collectives may take longer than the law."""
    factor = constant_draws()["communication.efa_unmeasured_factor"]
    assert 0.2 < np.mean(factor > 1) < 0.8
    assert factor.max() > 1.2


def test_comparisons_of_one_kind_of_plan_are_certain_and_those_of_two_less_doubtful_than_their_sum() -> None:
    kinds = ("sharded, nodes", "replicated, nodes")
    assert comparison_spread("hf-sdpa", kinds[0], kinds[0]) == 0
    doubt = comparison_spread("hf-sdpa", *kinds)
    assert doubt == pytest.approx(comparison_spread("hf-sdpa", *reversed(kinds)))
    first, second = (spreads("hf-sdpa", kind)[0] for kind in kinds)
    assert abs(first - second) < doubt < first + second


def test_a_measured_run_of_the_same_plan_halves_the_interval_and_the_assumptions_name_it() -> None:
    model, cluster, job = (
        Model.from_parameters(1e9, family="gpt2"),
        Cluster("ml.p4d.24xlarge", 1),
        Job(precision="bf16"),
    )
    plan = Plan(library="fsdp", batch_size=4)
    before = estimate(model, cluster, job, plan)
    assert any("about half as wide" in text for text in before.assumptions)
    run = observed(model, cluster, job, layout_of([plan], job, cluster), step_seconds=before.step_seconds)
    after = estimate(model, cluster, replace(job, calibration=Calibration(runs=(run,))), plan)
    widths = [float(np.log(of.step_factors[1] / of.step_factors[0])) for of in (before, after)]
    assert widths[1] <= 0.5 < widths[0]
    # Symmetric in logarithms.
    assert before.step_factors[0] * before.step_factors[1] == pytest.approx(1)


def test_no_end_of_an_interval_is_faster_than_the_hardware() -> None:
    """FLOPs that no kernel can leave out, at the peak of all GPUs, are a limit of every rate."""
    cluster, plan = Cluster("ml.p5.48xlarge", 1), Plan(library="fsdp", batch_size=4, activation_checkpointing="each")
    for length, fields in (
        (2048, {}),
        (65_536, {"attention_kernel": "flash-3"}),
        (2048, {"attention_kernel": "cudnn"}),
    ):
        job = Job(sequence_length=length, precision="bf16", attention="fused", **fields)
        model = Model.from_shape(layers=2, hidden=16_384, heads=128, vocab=32_000, family="llama")
        value = estimate(model, cluster, job, plan)
        assert value.mfu <= value.mfu_range[1]
        shortest = value.step_seconds_range[0]
        computed = model_flops_per_sample(model, length, computed=True) * value.global_batch_size
        assert computed / shortest <= 0.951 * 8 * peak_flops(cluster.instance, job)
        assert value.tokens_per_second_range[1] == pytest.approx(value.tokens_per_step / shortest)
