"""A plan that the library takes may still not suit the cluster, the model or the job."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import Cluster, Job, Plan, advise, estimate
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.libraries import check_against, mismatches
from smp_advisor.libraries.controls import completed_settings, dependent_settings, fields_of
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.workload import Model
from smp_advisor.workload.adapter import Adapter

NODES = Cluster("ml.p4d.24xlarge", 2)
MODEL = Model.from_shape(family="llama", layers=6, hidden=96, heads=12, kv_heads=2, ffn=384, vocab=100)
JOB = Job(sequence_length=512, precision="fp32")


def test_key_value_heads_may_divide_the_degree_or_be_divided_by_it():
    def heads(degree):
        return list(mismatches(Plan(tensor_parallel_degree=degree), Cluster.custom(**HARDWARE), MODEL))

    assert any("key-value heads (2)" in text for text in heads(3))
    assert heads(2) == heads(4) == heads(1) == []


HARDWARE = {
    "gpu": "A100",
    "usable_gpu_memory_gib": 39.0,
    "peak_tflops": 312.0,
    "gpus_per_node": 12,
    "nodes": 1,
    "intra_node_gb_per_s": 600.0,
    "inter_node_gbps": 400.0,
}


def test_sentences_of_mismatches():
    plan = Plan(bf16=True, sharded_data_parallel_degree=8)
    with pytest.raises(PlanError, match=r"V100 32 GB. does not compute in bf16"):
        check_against(plan, Cluster("ml.p3dn.24xlarge", 1))
    check_against(plan, Cluster("ml.p4d.24xlarge", 1))

    job = Job(global_batch_size=100, precision="fp32")
    (sentence,) = mismatches(Plan(), NODES, job=job)
    assert sentence.endswith("and the job requires 100: request a multiple of 16, for example 96.")

    plan = Plan(tensor_parallel_degree=8, pipeline_parallel_degree=2, fp16=True)
    assert len(list(mismatches(plan, NODES, MODEL, JOB))) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tensor_parallel_degree": 2}, "no tensor parallelism with an adapter"),
        ({"context_parallel_degree": 2}, ""),
        ({"fp8": True}, "no fp8 with an adapter"),
    ],
)
def test_smp_v2_only_shards_the_model_of_an_adapter(fields, words):
    job = Job(sequence_length=512, precision="bf16", fp8="fp8" in fields, adapter=Adapter(rank=8))
    plan = Plan(library="smp-v2", **fields)
    sentences = list(mismatches(plan, Cluster("ml.p5.48xlarge", 2), MODEL, job))
    assert [words in sentence for sentence in sentences] == [True] * bool(words)


GPT = Model.from_shape(family="gpt2", layers=12, hidden=1024, heads=16, vocab=50304, max_positions=2048)
LLAMA = Model.from_shape(family="llama", layers=12, hidden=1024, heads=16, vocab=32000, max_positions=2048)
STARTS = {
    "smp-v1": Plan(tensor_parallel_degree=2, prescaled_batch=True, fp16=True, batch_size=8, microbatches=2),
    "sharded": Plan(sharded_data_parallel_degree=16, fp16=True, batch_size=4),
    "pipeline": Plan(pipeline_parallel_degree=2, fp16=True, batch_size=8, microbatches=4, active_microbatches=3),
    "smp-v2": Plan(library="smp-v2", precision="fp16", hybrid_shard_degree=16, batch_size=4),
    "smp-v1-tensorflow": Plan(
        library="smp-v1-tensorflow", precision="fp16", partitions=2, horovod=True, batch_size=8, microbatches=4
    ),
    "fsdp": Plan(library="fsdp", precision="fp16", batch_size=4, gradient_accumulation_steps=2),
}
CHANGES = {
    "tensor_parallel_degree": [1, 2, 4, 8, 16],
    "pipeline_parallel_degree": [1, 2, 4],
    "partitions": [1, 2, 4],
    "microbatches": [1, 2, 4],
    "active_microbatches": [1, 2],
    "pipeline": ["simple", "interleaved"],
    "activation_checkpointing": [False, "each"],
    "offload_activations": [False, True],
    "hybrid_shard_degree": [1, 4, 16],
    "gradient_accumulation_steps": [1, 2, 4],
}


def model_of(plan):
    return LLAMA if plan.library == "smp-v2" else GPT


def change(plan, job=None, total=None, **changes):
    job = job or Job(sequence_length=1024)
    return dependent_settings(
        plan, fields_of(plan), changes, model=model_of(plan), job=job, cluster=NODES, global_batch_size=total
    )


@given(data=st.data(), start=st.sampled_from(sorted(STARTS)))
def test_a_change_stands_and_what_follows_makes_a_plan_with_the_same_global_batch(data, start):
    plan = STARTS[start]
    name = data.draw(st.sampled_from([name for name in CHANGES if name in fields_of(plan)]))
    value = data.draw(st.sampled_from(CHANGES[name]))
    total = global_batch_size(plan, NODES)
    after = change(plan, total=total, **{name: value})
    assert after.settings[name] == value
    if after.obstacle:
        return
    try:
        result = replace(plan, **completed_settings(plan, after.settings, NODES))
        estimate(model_of(plan), NODES, Job(sequence_length=1024, precision=result.precision), result)
    except AdvisorError as error:
        assert "exclude each other" in str(error)  # noqa: PT017
        return
    if not any("global batch" in words for words in after.moved):
        assert global_batch_size(result, NODES) == total


def test_shards_over_all_gpus_stay_over_all_and_a_fixed_batch_that_replicas_do_not_divide_is_an_obstacle():
    for degree in (2, 4, 8, 16):
        assert change(STARTS["smp-v2"], tensor_parallel_degree=degree).settings["hybrid_shard_degree"] == 16 // degree
    job = Job(sequence_length=1024, global_batch_size=24)
    after = change(STARTS["smp-v1"], job, 24, tensor_parallel_degree=1)
    assert "24 samples cannot be divided by 16 replicas" in after.obstacle


def test_a_sequence_that_the_degree_does_not_divide_is_planned_without_a_prescaled_batch():
    advice = advise("10B", NODES, library="smp-v1", family="gpt2", sequence_length=1020, tensor_parallel_degree=8)
    assert advice.estimate.fits
    assert (advice.plan.tensor_parallel_degree, advice.plan.prescaled_batch) == (8, False)
