"""Pitfalls: which demands a plan makes, and the warning about a smaller cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.guidance.practices import _rows, downsizing, pitfalls
from smp_advisor.libraries import Plan
from smp_advisor.wording import gib
from smp_advisor.workload.job import Job
from tests.guidance.runs import any_run, llama, model, planned_run

P4D = "ml.p4d.24xlarge"
PLAIN = Plan(fp16=True, batch_size=4)
TENSOR = Plan(fp16=True, batch_size=4, tensor_parallel_degree=2, prescaled_batch=True)


def found(plan, *, of=None, cluster=None, generated=False):
    run = planned_run(of or model("10 B"), cluster or Cluster(P4D, 2), plan)
    rows = pitfalls(run, script_is_generated=generated)
    return {(row.id, row.text): row for row in rows}


def ids(plan, **extra):
    return {id_ for id_, _ in found(plan, **extra)}


@pytest.mark.parametrize(
    ("id_", "with_", "without"),
    [
        ("SMP109", replace(PLAIN, microbatches=2), PLAIN),
        ("SMP105", replace(PLAIN, pipeline_parallel_degree=2), PLAIN),
        ("SMP104", TENSOR, PLAIN),
        ("SMP123", TENSOR, PLAIN),
        ("SMP124", TENSOR, PLAIN),
        ("SMP126", TENSOR, PLAIN),
        ("SMP127", replace(PLAIN, shard_optimizer_state=True), PLAIN),
        ("one-dtype", replace(PLAIN, shard_optimizer_state=True), PLAIN),
        ("SMP115", replace(PLAIN, activation_checkpointing="each"), PLAIN),
        ("SMP118", PLAIN, replace(PLAIN, fp16=False)),
        ("SMP119", PLAIN, replace(PLAIN, fp16=False)),
        ("SMP120", replace(PLAIN, sharded_data_parallel_degree=2), PLAIN),
        ("SMP117", replace(PLAIN, activation_checkpointing="each", offload_activations=True), PLAIN),
    ],
)
def test_demand_comes_with_the_technique_that_makes_it(id_, with_, without):
    assert id_ in ids(with_)
    assert id_ not in ids(without)


def test_unsupported_family_needs_its_layers_registered():
    plan = replace(TENSOR, prescaled_batch=False)

    assert "SMP135" in ids(plan, of=llama())
    assert "SMP135" not in ids(plan)
    assert "transformers-pin" in ids(plan)


def test_order_and_severity():
    plan = replace(TENSOR, microbatches=2, shard_optimizer_state=True, activation_checkpointing="each")
    generated = found(plan, generated=True).values()

    assert not [row for row in generated if row.severity == "error"]
    assert any("The generated script does this" in row.text for row in generated)
    assert [row for row in found(plan).values() if row.severity == "error"]

    order = ["error", "warning", "info"]
    severities = [order.index(row.severity) for row in found(TENSOR).values()]

    assert severities == sorted(severities)


@given(any_run())
def test_any_plan_gets_complete_rows(run):
    for row in pitfalls(run, script_is_generated=False):
        assert "{" not in row.text
        assert row.source_url.startswith("https://docs.aws.amazon.com/sagemaker/latest/dg/")
        assert row.source_title


def test_every_row_of_the_data_file_can_apply():
    seen = {row.id for row in _rows("smp-v1")}
    plans = [
        PLAIN,
        replace(TENSOR, microbatches=2, pipeline_parallel_degree=2, auto_partition=False, default_partition=0),
        replace(TENSOR, shard_optimizer_state=True, activation_checkpointing="each", offload_activations=True),
        replace(PLAIN, sharded_data_parallel_degree=2),
    ]
    reached = {id_ for plan in plans for id_ in ids(plan)}
    reached |= ids(replace(TENSOR, prescaled_batch=False), of=llama())
    reached |= ids(PLAIN, cluster=Cluster("ml.p3dn.24xlarge", 2))

    assert seen - reached == {"SMP130"}  # only of models above 100 B, which is tested below


def test_models_above_a_hundred_billion_delay_their_initialization():
    huge = model("30 B")
    grown = replace(huge, groups=tuple(replace(group, count=4 * group.count) for group in huge.groups))

    assert "SMP130" in ids(PLAIN, of=grown)


SHARDED = Plan(
    tensor_parallel_degree=8,
    prescaled_batch=True,
    shard_optimizer_state=True,
    activation_checkpointing="each",
    fp16=True,
    batch_size=4,
)


def test_shrinking_from_16_to_8_gpus_is_warned_of_with_figures():
    of, job = model("20 B"), Job(sequence_length=512)
    before = estimate(of, Cluster(P4D, 2), job, SHARDED)
    after = estimate(of, Cluster(P4D, 1), job, SHARDED)
    assert before.fits
    assert not after.fits

    warning = downsizing(planned_run(of, Cluster(P4D, 2), SHARDED))

    assert warning.severity == "warning"
    assert "8 GPUs" in warning.text
    assert "sharded over 1 replica instead of 2" in warning.text
    assert gib(before.needed_gib) in warning.text
    assert gib(after.needed_gib) in warning.text
    assert "optimizer-state-sharding" in warning.source_url
    assert warning in found(SHARDED, of=of).values()


def test_shrinking_is_warned_of_whatever_the_batch_and_only_where_it_matters():
    job = Job(sequence_length=512, global_batch_size=8)

    assert downsizing(planned_run(model("20 B"), Cluster(P4D, 2), SHARDED, job=job)) is not None

    for name, nodes, plan in (
        ("20 B", 16, SHARDED),
        ("20 B", 1, SHARDED),
        ("1.5 B", 2, replace(PLAIN, activation_checkpointing="each")),
    ):
        assert downsizing(planned_run(model(name), Cluster(P4D, nodes), plan)) is None
