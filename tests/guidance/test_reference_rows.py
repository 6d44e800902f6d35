"""AWS's published configurations through the cost model, and their distance from a plan."""

from dataclasses import replace

import pytest
from hypothesis import given

from smp_advisor.advice.reference import nearest_reference, reference_rows
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.wording import gib, throughput
from smp_advisor.libraries import Plan
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model
from tests.guidance.runs import any_run, llama, model, planned_run

ROWS = {row.name: row for row in reference_rows()}
P4D = "ml.p4d.24xlarge"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_published_row_has_its_size_its_marks_and_fits_with_its_techniques_only(row):
    published = float(row.name.split()[0]) * 1e9

    assert row.model.parameter_count == pytest.approx(published, rel=0.02)
    assert row.job.sequence_length == 512
    assert row.model.shape.vocab == 50_000

    assert any("fp16 is assumed" in sentence for sentence in row.assumed)
    assert any("shape" in sentence for sentence in row.assumed) == (row.name != "30 B")

    assert estimate(row.model, row.cluster, row.job, row.plan).fits
    for without in ({"shard_optimizer_state": False}, {"activation_checkpointing": False}):
        assert not estimate(row.model, row.cluster, row.job, replace(row.plan, **without)).fits


@pytest.mark.parametrize(
    ("parameters", "nodes", "expected"), [(9e9, 16, "10 B"), (3e10, 8, "30 B"), (9e10, 64, "60 B"), (1e9, 1, "10 B")]
)
def test_nearest_is_by_size_and_gpus(parameters, nodes, expected):
    of = Model.from_shape(layers=48, hidden=int((parameters / 576) ** 0.5) // 64 * 64, heads=64, vocab=50_000)
    run = planned_run(of, Cluster(P4D, nodes), Plan(fp16=True, batch_size=1, shard_optimizer_state=True))

    assert nearest_reference(run).name == expected


def test_reference_is_estimated_by_the_same_cost_model():
    row = ROWS["10 B"]
    own = estimate(row.model, row.cluster, row.job, row.plan)

    reference = nearest_reference(planned_run(row.model, row.cluster, row.plan, job=row.job))

    assert reference.fits
    assert reference.needed_gib == own.needed_gib
    assert reference.differences == ()
    assert "16 x ml.p4d.24xlarge" in reference.summary
    assert reference.source_url
    assert reference.assumed == row.assumed


def test_each_difference_is_argued_by_trying_the_references_setting():
    run = planned_run(
        model("10 B"),
        Cluster(P4D, 16),
        Plan(sharded_data_parallel_degree=8, fp16=True, batch_size=8, activation_checkpointing="each"),
    )
    reference = nearest_reference(run)
    found = {difference.setting: difference for difference in reference.differences}

    assert (found["Tensor parallel degree"].reference, found["Tensor parallel degree"].recommended) == ("4", "1")
    tried = replace(run.plan, shard_optimizer_state=True, sharded_data_parallel_degree=1)
    expected = estimate(run.model, run.cluster, run.job, tried)
    because = found["State sharding"].because
    assert gib(expected.needed_gib) in because
    assert gib(run.estimate.needed_gib) in because
    wider = estimate(run.model, run.cluster, run.job, replace(run.plan, batch_size=40))
    assert throughput(wider) in found["Samples per replica"].because


@pytest.mark.slow
@given(any_run())
def test_every_plan_has_a_reference_with_reasons(run):
    reference = nearest_reference(run)

    assert reference.name in ROWS
    assert reference.extrapolation.endswith(".")
    for difference in reference.differences:
        assert difference.reference != difference.recommended or difference.setting == "Model"
        assert difference.because.endswith(".")


def test_distance_and_other_architectures_are_stated():
    run = planned_run(
        model("20 B"),
        Cluster(P4D, 16),
        Plan(sharded_data_parallel_degree=32, fp16=True, batch_size=1, activation_checkpointing="each"),
        job=Job(sequence_length=2048),
    )
    text = nearest_reference(run).extrapolation

    assert "4 times the sequence length" in text
    assert "lower the batch first, then raise the tensor parallel degree" in text

    run = planned_run(llama(), Cluster(P4D, 16), Plan(fp16=True, batch_size=1, shard_optimizer_state=True))

    text = nearest_reference(run).extrapolation

    assert "another architecture (llama)" in text
