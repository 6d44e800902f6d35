"""Pitfalls: which demands a plan makes; and practices and reference rows of the libraries beside SMP v1."""

import math
from dataclasses import replace

import pytest
from hypothesis import given

from smp_advisor import advise
from smp_advisor.advice.explanation import explain
from smp_advisor.advice.practices import _requirements, downsizing, order, pitfalls
from smp_advisor.advice.reference import nearest_reference, reference_rows
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.wording import gib, run_time
from smp_advisor.libraries import Plan
from smp_advisor.libraries.training_compiler import nearest_tested
from smp_advisor.workload import Adapter, Job, Model
from tests.guidance.runs import TEN_B, any_run, llama, model, planned_run

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
    unscripted = replace(TENSOR, prescaled_batch=False)
    plans = [
        PLAIN,
        replace(TENSOR, microbatches=2, pipeline_parallel_degree=2, auto_partition=False, default_partition=0),
        replace(TENSOR, shard_optimizer_state=True, activation_checkpointing="each", offload_activations=True),
        replace(PLAIN, sharded_data_parallel_degree=2),
    ]
    reached = {id_ for plan in plans for id_ in ids(plan)}
    reached |= ids(unscripted, of=llama()) | ids(PLAIN, cluster=Cluster("ml.p3dn.24xlarge", 2))

    assert {entry["id"] for entry, *_ in _requirements("smp-v1")} - reached == {"SMP130"}  # only of models above 100 B
    huge = model("30 B")
    grown = replace(huge, groups=tuple(replace(group, count=4 * group.count) for group in huge.groups))
    assert "SMP130" in ids(PLAIN, of=grown)
    assert "SMP135" in ids(unscripted, of=llama()) - ids(unscripted)
    assert "transformers-pin" in ids(unscripted)


SHARDED = replace(TEN_B, tensor_parallel_degree=8, batch_size=4)


def test_shrinking_is_warned_of_with_figures_whatever_the_batch_and_only_where_it_matters():
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

    fixed = replace(job, global_batch_size=8)
    assert downsizing(planned_run(of, Cluster(P4D, 2), SHARDED, job=fixed)) is not None
    small = replace(PLAIN, activation_checkpointing="each")
    for name, nodes, plan in (("20 B", 16, SHARDED), ("20 B", 1, SHARDED), ("1.5 B", 2, small)):
        assert downsizing(planned_run(model(name), Cluster(P4D, nodes), plan)) is None


LLAMA_70B = Model.from_shape(
    layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32_000, family="llama", name="Llama 2 70B"
)
GPT2 = Model.from_shape(layers=12, hidden=768, heads=12, vocab=50_257, max_positions=1024, family="gpt2", name="GPT-2")
P4D_32 = Cluster("ml.p4d.24xlarge", 32)
BF16 = Job(sequence_length=4096, precision="bf16", attention="fused")


def explained(plan, model=LLAMA_70B, cluster=P4D_32, job=BF16):
    return {one.technique: one for one in explain(planned_run(model, cluster, plan, job=job))}


@pytest.mark.parametrize("row", reference_rows("smp-v2"), ids=lambda row: row.name)
def test_aws_reference_rows_of_smp_v2_fit(row):
    assert estimate(row.model, row.cluster, row.job, row.plan).fits


def test_sharding_is_argued_with_the_next_lower_degree_and_the_nearest_reference_with_each_difference():
    sharded = Plan(library="smp-v2", hybrid_shard_degree=256, batch_size=2, activation_checkpointing="each")
    step = explained(sharded)["sharding"]
    assert step.decision == "used"
    assert "sharded over 256 GPUs" in step.details
    assert step.alternative.hybrid_shard_degree < 256
    assert step.outcome is not None

    plan = replace(sharded, hybrid_shard_degree=128, batch_size=3, offload_activations=True)
    found = nearest_reference(planned_run(LLAMA_70B, P4D_32, plan, job=BF16))
    assert found.name == "70 B"
    settings = {one.setting for one in found.differences}
    assert settings == {"Hybrid shard degree", "Offload activations", "Batch size"}
    assert all(one.because.endswith(".") for one in found.differences)


def test_replicas_of_shards_are_compared_where_there_are_nodes_to_hold_them():
    plan, small = Plan(library="fsdp", activation_checkpointing="each"), Model.from_parameters("7B", family="llama")
    for nodes in (1, 2):
        step = explained(plan, small, Cluster(P4D, nodes), replace(BF16, sequence_length=2048))["sharding"]
        assert ("With sharding_strategy='hybrid_shard'" in step.details) == (nodes > 1)


def test_known_issues_follow_the_version():
    def ids(version, **fields):
        plan = Plan(library="smp-v2", version=version, hybrid_shard_degree=256, batch_size=1, **fields)
        return {one.id for one in pitfalls(planned_run(LLAMA_70B, P4D_32, plan, job=BF16), script_is_generated=False)}

    assert "2.1.0-flash-attention" in ids("2.1.0")
    assert "2.1.0-flash-attention" not in ids("2.8.0")
    assert "2.2.0-offloading" in ids("2.2.0", offload_activations=True, activation_checkpointing="each")
    assert "2.6.0-checkpoint-module" in ids("2.6.0")
    assert "moved-tag" in ids("2.6.1")
    assert "moved-tag" not in ids("2.7.0")
    assert "old-transformers" in ids("2.5.0")
    assert "SMP302" not in ids("2.8.0")


def fsdp_pitfalls(library, *, adapter=None, generated=False, **fields):
    model = Model.from_parameters("13B", family="llama")
    job = Job(sequence_length=1024, precision="bf16", adapter=adapter)
    plan = Plan(library=library, batch_size=1, **fields)
    found = pitfalls(planned_run(model, Cluster("ml.p4d.24xlarge"), plan, job=job), script_is_generated=generated)
    return [one for one in found if one.id in {"SMP308", "SMP309"}]


@pytest.mark.parametrize("library", ["fsdp", "smp-v2"])
def test_accumulation_under_fsdp_names_what_whole_gradients_take(library):
    (found,) = fsdp_pitfalls(library, gradient_accumulation_steps=4)
    assert found.severity == "warning"
    assert "each of the 4 batches" in found.text
    parameters = Model.from_parameters("13B", family="llama").parameter_count
    assert f"{2 * parameters / 2**30:.1f} GiB" in found.text
    assert found.source_url.endswith("FullyShardedDataParallel.no_sync")
    assert not fsdp_pitfalls(library, gradient_accumulation_steps=1)
    (done,) = fsdp_pitfalls(library, gradient_accumulation_steps=4, generated=True)
    assert done.severity == "info"
    assert done.text.endswith("with each of the 4 batches. The generated script does this.")


@pytest.mark.parametrize("library", ["fsdp", "smp-v2"])
def test_adapters_under_fsdp_are_to_be_wrapped_apart(library):
    adapter = Adapter(rank=8)
    (apart,) = fsdp_pitfalls(library, adapter=adapter)
    assert apart.id == "SMP309"
    assert "fsdp_auto_wrap_policy" in apart.text
    assert "3.0 GiB more" in apart.text  # 24.2 GiB over 8 GPUs
    both = fsdp_pitfalls(library, adapter=adapter, gradient_accumulation_steps=4)
    assert {one.id for one in both} == {"SMP308", "SMP309"}
    assert "24.2 GiB" in next(one.text for one in both if one.id == "SMP308")
    # The advisor writes no script for adapters: nothing is done already.
    generated = fsdp_pitfalls(library, adapter=adapter, gradient_accumulation_steps=4, generated=True)
    assert all(one.severity == "warning" for one in generated)
    assert not any("generated" in one.text for one in generated)
    if library == "smp-v2":  # replicas hold whole gradients anyway
        replicated = {"hybrid_shard_degree": 1, "gradient_accumulation_steps": 4}
        assert not fsdp_pitfalls(library, **replicated)
        assert not fsdp_pitfalls(library, adapter=adapter, **replicated)


def test_training_compiler_argues_with_the_nearest_tested_row():
    row = nearest_tested(GPT2, Cluster("ml.g5.12xlarge").instance, 512, "1.13.1")
    batches = (row.native_batch_size, row.compiled_batch_size)
    assert (row.model, row.instance_type, batches) == ("gpt2", "ml.g5.48xlarge", (18, 45))
    assert nearest_tested(LLAMA_70B, Cluster("ml.g5.12xlarge").instance, 512, "1.13.1") is None

    cluster, job = Cluster("ml.g5.48xlarge"), Job(sequence_length=512, precision="fp16", tokens=1e9)
    plan = Plan(library="training-compiler", batch_size=12)
    steps = explained(plan, GPT2, cluster, replace(job, tokens=None))
    assert tuple(steps) == order("training-compiler")
    assert steps["batch"].alternative.batch_size == 45
    assert "2.50" in steps["learning_rate"].details
    assert f"{math.sqrt(2.5):.2f}" in steps["learning_rate"].details
    assert "no new releases" in steps["support"].details
    assert "AWS tested" in steps["support"].details
    assert "max_length=512" in steps["padding"].details

    plan = replace(plan, batch_size=8)
    run, details = estimate(GPT2, cluster, job, plan), explained(plan, GPT2, cluster, job)["warm_up"].details
    assert f"takes {run_time(run)}" in details
    assert f"up to {run.days * 24 * 12:,.0f} minutes" in details


def test_experts_are_spread_where_that_is_best():
    mixtral = Model.from_shape(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32_000, family="mixtral", experts=8,
        experts_per_token=2,
    )  # fmt: skip
    advice = advise(mixtral, "ml.p4d.24xlarge", instance_count=8, library="smp-v2", sequence_length=2048)
    assert advice.plan.expert_parallel_degree > 1
    step = next(one for one in advice.steps if one.technique == "expert_parallelism")
    assert step.decision == "used"
    assert "SMP302" in {one.id for one in advice.pitfalls}
