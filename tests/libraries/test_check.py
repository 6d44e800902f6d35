"""A plan that the library takes may still not suit the cluster, the model or the job."""

from __future__ import annotations

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan, check_against, mismatches
from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.block import Block, SavedActivations
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import BlockGroup, Head, Model, Shape

BLOCK = Block(
    kind="decoder",
    hidden=96,
    parameters=10,
    replicated_parameters=0,
    matmuls=(),
    attentions=(),
    saved=SavedActivations(split_elements=0, replicated_elements=0),
)
MODEL = Model(
    name="toy",
    family="llama",
    origin="given",
    shape=Shape(layers=6, hidden=96, heads=12, kv_heads=2, ffn=384, vocab=100),
    groups=(BlockGroup(block=BLOCK, count=6),),
    embedding_parameters=0,
    token_embedding_parameters=0,
    final_parameters=0,
    head=Head(kind="language-model", outputs=100, parameters=0, tied=True),
)
P4D = Cluster("ml.p4d.24xlarge", 2)
JOB = Job(sequence_length=512, precision="fp32")

# Each row: the plan, where and what it is for, words of the sentence, and what makes it suit.
UNSUITED = [
    ({"pipeline_parallel_degree": 3}, {}, "16 GPUs are not a multiple", {"pipeline_parallel_degree": 2}),
    ({"ddp": False}, {}, "hold 16 replicas", {"ddp": True}),
    (
        {"sharded_data_parallel_degree": 12},
        {},
        "must divide the data-parallel degree, which is 16 on 16 GPUs: set it to 16",
        {"sharded_data_parallel_degree": 8},
    ),
    (
        {"sharded_data_parallel_degree": 16, "tensor_parallel_degree": 2},
        {},
        "reduced data-parallel degree, which is 8",
        {"sharded_data_parallel_degree": 8},
    ),
    (
        {"tensor_parallel_degree": 8},
        {"model": MODEL},
        "attention heads (12), else the library leaves those layers undivided: set it to 6",
        {"tensor_parallel_degree": 4},
    ),
    (
        {"pipeline_parallel_degree": 8},
        {"model": MODEL},
        "exceed the model's 6 blocks",
        {"pipeline_parallel_degree": 4},
    ),
    ({"fp16": True}, {"job": JOB}, "trains in fp32 and the plan in fp16", {"fp16": False}),
    (
        {"batch_size": 3},
        {"job": Job(global_batch_size=32, precision="fp32")},
        "global batch is 48 samples (batch_size 3 x 16) and the job requires 32: set batch_size to 2",
        {"batch_size": 2},
    ),
    (
        {"tensor_parallel_degree": 4, "prescaled_batch": True},
        {"model": MODEL, "job": Job(sequence_length=510, precision="fp32")},
        "sequence length (510) must be a multiple of tensor_parallel_degree (4): use 508 tokens",
        {"prescaled_batch": False},
    ),
]


@pytest.mark.parametrize(("fields", "where", "words", "change"), UNSUITED)
def test_unsuited_in_one_sentence_and_suited_once_it_is_heeded(fields, where, words, change):
    with pytest.raises(PlanError) as refusal:
        check_against(Plan(**fields), P4D, **where)
    assert words in str(refusal.value)
    assert str(refusal.value).endswith(".")
    check_against(Plan(**(fields | change)), P4D, **where)


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
    (sentence,) = mismatches(Plan(), P4D, job=job)
    assert sentence.endswith("and the job requires 100: request a multiple of 16, for example 96.")

    plan = Plan(tensor_parallel_degree=8, pipeline_parallel_degree=2, fp16=True)
    assert len(list(mismatches(plan, P4D, MODEL, JOB))) == 2


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
