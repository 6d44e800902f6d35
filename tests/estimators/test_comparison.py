"""From the plan that was read to the recommended one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smp_advisor import check_estimator
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.report import compare
from smp_advisor.libraries import Plan
from smp_advisor.workload import Model
from tests.estimators import cells

MODEL = Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_257)


@pytest.fixture(scope="module")
def report():
    return check_estimator(cells.V1, model=MODEL)


def test_the_recommended_plan_is_no_slower_and_each_difference_is_named(report):
    found = report.recommended()
    assert found.yours == report.plan
    assert found.recommended_estimate.fits
    assert found.recommended_estimate.global_batch_size == found.your_estimate.global_batch_size
    assert found.recommended_estimate.samples_per_second >= 0.999 * found.your_estimate.samples_per_second
    names = {one.setting for one in found.differences}
    differing = {
        name
        for name in ("tensor_parallel_degree", "pipeline_parallel_degree", "microbatches", "batch_size")
        if getattr(found.yours, name) != getattr(found.recommended, name)
    }
    assert differing <= names
    assert "samples/s" in found.gain
    assert str(found).startswith("Your plan fits with")


def test_a_setting_alone_says_what_it_does():
    report = check_estimator(cells.V1, model=MODEL)
    unchecked = replace(report.plan, activation_checkpointing=False)
    found = compare(MODEL, report.plan, unchecked, cluster=report.cluster, job=report.job)
    (row,) = found.differences
    assert (row.setting, row.reference, row.recommended) == ("activation_checkpointing", "each", "off")
    assert row.because.startswith("Alone, the plan needs")
    assert "shorter" in row.because


def test_another_library_is_one_difference(report):
    other = Plan(library="smp-v2", hybrid_shard_degree=8, batch_size=4, activation_checkpointing="each")
    found = compare(MODEL, report.plan, other, cluster=report.cluster, job=report.job)
    assert [one.setting for one in found.differences] == ["library"]


def test_without_a_model_or_plan_there_is_nothing_to_compare():
    with pytest.raises(AdvisorError, match="describe the model"):
        check_estimator(cells.V1).recommended()
    with pytest.raises(AdvisorError, match="no plan"):
        check_estimator({"partitions": 2, "ddp": True}).recommended("10B")


def test_a_recipe_gets_no_gradient_accumulation_which_recipes_refuse():
    report = check_estimator(cells.RECIPE)
    assert report.recommended().recommended.gradient_accumulation_steps == 1
    assert report.recommended(gradient_accumulation_steps=8).recommended.gradient_accumulation_steps == 8
