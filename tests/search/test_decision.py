"""The choice under the cost model's uncertainty."""

from __future__ import annotations

import numpy as np
import pytest

import smp_advisor as smpa
from smp_advisor.costs.predictive import layout_draws
from smp_advisor.costs.uncertainty import comparison_spread
from smp_advisor.search.decision import FAMILIES
from smp_advisor.search.policy import published_for


@pytest.fixture(scope="module")
def advice() -> smpa.Advice:
    return smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1")


@pytest.mark.slow
def test_probability_and_regret_are_shares_and_repeat_themselves(advice: smpa.Advice) -> None:
    decision = advice.decision
    assert 0 < decision.near_best_probability < 1
    assert 0 <= decision.expected_regret < 0.5
    assert decision.family in FAMILIES.values()
    assert decision.family not in decision.indistinct
    assert set(decision.indistinct) <= set(FAMILIES.values())
    repeated = smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1")
    assert decision == repeated.decision


def test_a_publication_is_named_where_families_are_as_fast(advice: smpa.Advice) -> None:
    assert advice.decision.indistinct
    assert advice.decision.family == "sharded data parallelism"
    published = published_for("smp-v1", advice.model.parameter_count)
    assert published is not None
    assert advice.decision.published == published.title
    assert published_for("ddp", 10**10) is None


def test_measured_runs_narrow_the_draws_and_move_their_middle(advice: smpa.Advice) -> None:
    measured = advice.calibrate(step_seconds=1.2 * advice.estimate.step_seconds, plan=advice.plan)
    layout = advice.result.space.layout.take(np.arange(1))
    before, after = (
        np.log(layout_draws(advice.model, advice.cluster, job, [layout]))[:, 0] for job in (advice.job, measured.job)
    )
    assert after.std() < 0.9 * before.std()
    assert after.mean() > before.mean()


def test_a_search_with_one_plan_is_certain() -> None:
    pins = {"batch_size": 2, "gradient_accumulation_steps": 1, "activation_checkpointing": "each"}
    advice = smpa.advise("125M", "ml.p4d.24xlarge", library="ddp", **pins)
    assert advice.decision.near_best_probability == 1
    assert advice.decision.expected_regret == 0


def test_a_plan_in_bf16_is_compared_with_the_plans_that_require_fp16(advice: smpa.Advice) -> None:
    assert advice.job.precision == "bf16"
    assert "pipeline parallelism" in advice.decision.indistinct


def test_measured_runs_refine_the_resolution_between_families(advice: smpa.Advice) -> None:
    measured = advice.calibrate(step_seconds=advice.estimate.step_seconds, plan=advice.plan)
    assert comparison_spread("hf-eager", "sharded, nodes", "tensor, nodes", (0.5, 0.5)) < comparison_spread(
        "hf-eager", "sharded, nodes", "tensor, nodes"
    )
    assert measured.decision.expected_regret <= advice.decision.expected_regret
    assert len(measured.decision.indistinct) <= len(advice.decision.indistinct)


def test_offloading_is_never_faster_than_the_same_plan_without_it() -> None:
    advice = smpa.advise("llama-3-70b", "ml.p5.48xlarge", instance_count=16, library="smp-v2")
    decision = advice.decision
    assert 0 <= decision.least_regret <= decision.expected_regret < 0.12
