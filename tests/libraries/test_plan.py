"""A plan writes exactly what the library takes, refuses what it doesn't, and reads itself back."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.errors import InstanceError, PlanError
from smp_advisor.libraries import Plan, image, mismatches, require_supported_instance, schema, violations
from smp_advisor.libraries.groups import global_batch_size, shard_degree
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.libraries.version import images, suggested_instances, supported_instances
from smp_advisor.workload import Job, Model
from tests.libraries.plans import valid_plans, valid_plans_of

REFERENCE = {
    "tensor_parallel_degree": 4,
    "shard_optimizer_state": True,
    "prescaled_batch": True,
    "fp16": True,
    "batch_size": 40,
    "activation_checkpointing": "each",
}


def test_the_10_billion_reference_row_as_the_estimator_takes_it():
    plan = Plan(**REFERENCE)
    assert plan.parameters == {
        "pipeline_parallel_degree": 1,
        "tensor_parallel_degree": 4,
        "microbatches": 1,
        "ddp": True,
        "optimize": "speed",
        "prescaled_batch": True,
        "shard_optimizer_state": True,
        "fp16": True,
    }
    assert plan.hyperparameters == {"batch_size": 40, "activation_checkpointing": "each", "precision": "fp16"}


def test_what_is_written_depends_on_pipeline_partition_and_version():
    plan = Plan(pipeline_parallel_degree=4, microbatches=8, active_microbatches=5, batch_size=8)
    assert plan.parameters["pipeline"] == "interleaved"
    assert plan.parameters["active_microbatches"] == 5
    assert "pipeline" not in Plan(microbatches=8, batch_size=8).parameters

    parameters = Plan(pipeline_parallel_degree=2, auto_partition=False, default_partition=0).parameters
    assert parameters["partitions"] == parameters["pipeline_parallel_degree"] == 2

    parameters = Plan(version="1.5.0", pipeline_parallel_degree=2).parameters
    assert parameters["partitions"] == 2
    assert {"pipeline_parallel_degree", "tensor_parallel_degree"}.isdisjoint(parameters)


# Each row: what is refused, words of its sentence, and the smallest change that makes it pass.
REFUSED = [
    ({"bf16": True}, "bf16 works with sharded data parallelism only", {"sharded_data_parallel_degree": 2}),
    (
        {"sharded_data_parallel_degree": 2, "tensor_parallel_degree": 2, "version": "1.13.0"},
        "or use SMP v1 1.15.0, which allows it",
        {"version": "1.15.0"},
    ),
    (
        {"microbatches": 4, "active_microbatches": 5, "batch_size": 4},
        "cannot exceed microbatches (active_microbatches=5, microbatches=4)",
        {"active_microbatches": 4},
    ),
    ({"batch_size": 6, "microbatches": 4}, "batch_size=6, microbatches=4", {"batch_size": 8}),
    ({"placement_strategy": "PTD"}, "smp.init({'placement_strategy': 'PTD'})", {"placement_strategy": "spread"}),
    ({"fp16": True, "version": "1.9.0"}, "fp16 came with SMP v1 1.10.0", {"version": "1.10.0"}),
    ({"activation_checkpointing": "group_1"}, "N of at least 2", {"activation_checkpointing": "group_2"}),
    ({"activation_checkpointing": True}, "must be False, 'each'", {"activation_checkpointing": False}),
    ({"activation_checkpointing": "some"}, "must be False, 'each'", {"activation_checkpointing": "contiguous"}),
    (
        {"sdp_reduce_bucket_size": 5e8, "sharded_data_parallel_degree": 2},
        "write int(5e8)",
        {"sdp_reduce_bucket_size": int(5e8)},
    ),
    ({"memory_weight": 1}, "must be a float and 1 is an int: write 1.0", {"memory_weight": 1.0}),
    ({"memory_weight": float("nan")}, "from 0 to 1", {"memory_weight": 0.0}),
    ({"tensor_parallel_degree": True}, "must be an int and True is a bool", {"tensor_parallel_degree": 1}),
    ({"pipeline_parallel_degree": "2"}, "'2' is a str", {"pipeline_parallel_degree": 2}),
    ({"fp16": 0}, "write True or False", {"fp16": False}),
    ({"microbatches": 0}, "at least 1, not 0", {"microbatches": 1}),
    ({"batch_size": 0}, "at least 1, not 0", {"batch_size": 1}),
    ({"batch_size": True}, "not True", {"batch_size": 1}),
    ({"optimize": "fast"}, "'speed' or 'memory', not 'fast'", {"optimize": "memory"}),
    ({"pipeline": "_only_forward"}, "'interleaved' or 'simple'", {"pipeline": "simple"}),
    ({"version": "1.15"}, "no version '1.15': use 1.15.0", {"version": "1.15.0"}),
    ({"version": 1.15}, "known versions are 1.4.0", {"version": "1.15.0"}),
    ({"library": "smp-v9"}, "library must be one of smp-v1", {"library": "smp-v1"}),
    ({"tensor_parallel_seed": 10**2600}, "SageMaker takes 2500", {"tensor_parallel_seed": 10}),
]


@pytest.mark.parametrize(("fields", "words", "change"), REFUSED)
def test_refused_in_one_sentence_and_accepted_once_it_is_heeded(fields, words, change):
    with pytest.raises(PlanError) as refusal:
        Plan(**fields)
    sentence = str(refusal.value)
    assert words in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    Plan(**(fields | change))


def test_reading_knows_defaults_and_older_names():
    assert Plan.from_parameters({}).ddp is False
    with pytest.raises(PlanError, match="needs ddp"):
        Plan.from_parameters({"tensor_parallel_degree": 2})

    assert Plan.from_parameters({"fp16_params": True}).precision == "fp16"


def test_reading_refuses_what_contradicts_or_would_be_lost():
    with pytest.raises(
        PlanError, match=r"no parameter 'tensor_paralel_degree'.*most similar one is tensor_parallel_degree"
    ):
        Plan.from_parameters({"tensor_paralel_degree": 4})

    with pytest.raises(PlanError, match="one parameter under two names"):
        Plan.from_parameters({"partitions": 2, "pipeline_parallel_degree": 4})

    read = Plan.from_parameters({"fast_mode": False}, {"batch_size": 3, "learning_rate": 1e-4})
    assert read.batch_size == 3
    with pytest.raises(PlanError, match="fast_mode=True is not part of a plan"):
        Plan.from_parameters({"fast_mode": True})

    with pytest.raises(PlanError, match="precision is 'bf16' and that of the library's parameters is 'fp16'"):
        Plan.from_parameters({"fp16": True}, {"precision": "bf16"})


AWS_SAMPLES = {
    "gpt-j": {
        "ddp": True, "microbatches": 2, "partitions": 8, "shard_optimizer_state": True, "prescaled_batch": False,
        "optimize": "memory", "auto_partition": True, "default_partition": 0, "offload_activations": True,
        "active_microbatches": 2,
    },
    "gpt2 30B": {
        "ddp": True, "tensor_parallel_degree": 8, "partitions": 1, "shard_optimizer_state": True,
        "prescaled_batch": False, "fp16": True, "optimize": "speed", "auto_partition": False, "default_partition": 0,
    },
    "neox, sharded": {
        "ddp": True, "skip_tracing": True, "delayed_parameter_initialization": True, "offload_activations": False,
        "activation_loading_horizon": 4, "sharded_data_parallel_degree": 32, "bf16": True, "partitions": 1,
    },
    "gpt-j, sharded with tensor parallelism": {
        "ddp": True, "tensor_parallel_degree": 2, "sharded_data_parallel_degree": 4, "partitions": 1,
        "shard_optimizer_state": False, "prescaled_batch": True, "optimize": "speed", "skip_tracing": True,
        "delayed_parameter_initialization": True, "bf16": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("parameters", AWS_SAMPLES.values(), ids=AWS_SAMPLES)
def test_the_dictionaries_of_aws_samples_are_read(parameters):
    plan = Plan.from_parameters(parameters)
    written = plan.parameters
    assert plan.pipeline_parallel_degree == parameters["partitions"]
    for key in ("sharded_data_parallel_degree", "bf16", "default_partition", "offload_activations", "optimize"):
        assert written.get(key, False) == parameters.get(key, written.get(key, False))


def test_settings_without_effect_and_other_names_leave_equal_plans_equal():
    assert Plan(sdp_reduce_bucket_size=7, activation_loading_horizon=2) == Plan()
    assert Plan(ddp=True) == Plan()
    assert hash(Plan(ddp=True)) == hash(Plan())
    assert Plan(sharded_data_parallel_degree=2, sdp_reduce_bucket_size=7).parameters["sdp_reduce_bucket_size"] == 7

    assert Plan(activation_checkpointing="none") == Plan(activation_checkpointing=False)

    assert Plan(pipeline_parallel_degree=2, microbatches=8, batch_size=8).active_in_flight == 4
    assert Plan(pipeline_parallel_degree=8, microbatches=8, batch_size=8).active_in_flight == 8
    assert Plan(pipeline_parallel_degree=8, microbatches=8, active_microbatches=3, batch_size=8).active_in_flight == 3


P4D_2 = Cluster("ml.p4d.24xlarge", 2)
LLAMA = Model.from_shape(layers=8, hidden=1024, heads=16, kv_heads=8, ffn=2816, vocab=32_000, family="llama")
GPT = Model.from_shape(layers=8, hidden=1024, heads=16, vocab=50_257, family="gpt2")
MIXTRAL = Model.from_shape(
    layers=4, hidden=512, heads=8, kv_heads=4, ffn=1024, vocab=32_000, family="mixtral", experts=8, experts_per_token=2
)


@given(st.sampled_from(LIBRARIES).flatmap(lambda name: valid_plans() if name == "smp-v1" else valid_plans_of(name)))
def test_a_plan_is_a_value_and_what_it_writes_is_the_versions_own_and_is_read_back_from_json(plan):
    parameters, settings = json.loads(json.dumps(plan.parameters)), json.loads(json.dumps(plan.hyperparameters))
    assert Plan.from_parameters(parameters, settings, version=plan.version, library=plan.library) == plan
    assert len(json.dumps(plan.parameters)) <= 2500
    assert set(plan.parameters) <= set(schema(plan.library).defaults(plan.version))
    written = {**plan.hyperparameters, "activation_checkpointing": plan.activation_checkpointing}
    assert list(violations(plan.parameters, version=plan.version, library=plan.library, settings=written)) == []
    assert not set(plan.parameters) & set(plan.hyperparameters)
    # A script's type=bool would read the text "False" as true.
    assert not any(isinstance(value, bool) for value in plan.hyperparameters.values())
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan
    assert hash(replace(plan)) == hash(plan)
    assert isinstance(plan, Plan)
    assert type(plan) is get_library(plan.library).plan


def test_awss_own_sample_reads_into_a_plan():
    parameters = {
        "activation_loading_horizon": 2,
        "hybrid_shard_degree": 4,
        "sm_activation_offloading": True,
        "tensor_parallel_degree": 2,
        "random_seed": 12345,
    }
    script = {"train_batch_size": 2, "bf16": 1, "activation_checkpointing": 1, "delayed_param": 1, "max_steps": 100}
    plan = Plan.from_parameters(parameters, script, version="2.7.0", library="smp-v2")
    assert (plan.batch_size, plan.precision, plan.activation_checkpointing) == (2, "bf16", "each")
    assert plan.offload_activations
    assert plan.delayed_parameter_initialization
    assert plan.activation_loading_horizon == 2


REFUSED_BY_EACH = [
    ("smp-v2", {"context_parallel_degree": 8, "hybrid_shard_degree": 4}, "cannot exceed hybrid_shard_degree"),
    ("smp-v2", {"context_parallel_degree": 2, "version": "2.4.0"}, "came with SMP v2 2.5.0"),
    ("smp-v2", {"expert_parallel_degree": 2, "version": "2.2.0"}, "came with SMP v2 2.3.0"),
    ("smp-v2", {"fp8": True, "version": "2.1.0"}, "or use SMP v2 2.2.0, which allows it"),
    ("smp-v2", {"fp8": True, "precision": "fp16"}, "fp8 requires bf16"),
    ("smp-v2", {"offload_activations": True}, "no effect without activation checkpointing"),
    (
        "smp-v2",
        {"tensor_parallel_degree": 2, "hybrid_shard_degree": 1, "distributed_backend": "smddp"},
        "set distributed_backend to",
    ),
    ("smp-v2", {"pipeline_parallel_degree": 2}, "SMP v1 has it"),
    ("smp-v2", {"activation_checkpointing": "group_2"}, "must be False, 'each', 'operators' or 'every_N'"),
    ("smp-v2", {"hybrid_shard_degree": True}, "must be an int and True is a bool"),
    ("smp-v2", {"version": "2.9.0"}, "SMP v2 has no version '2.9.0'"),
    ("smp-v1-tensorflow", {"tensor_parallel_degree": 2}, "SMP v1 and SMP v2 have it"),
    ("smp-v1-tensorflow", {"microbatches": 4, "batch_size": 6}, "multiple of microbatches"),
    ("smp-v1-tensorflow", {"auto_partition": False}, "needs default_partition"),
    ("training-compiler", {"precision": "bf16"}, "'fp16' or 'fp32', not 'bf16'"),
    ("training-compiler", {"enabled": 1}, "write True or False"),
    ("training-compiler", {"version": "2.0.0"}, "has no version '2.0.0'"),
    ("fsdp", {"sharding_strategy": "zero3"}, "'full_shard' or 'shard_grad_op'"),
    ("ddp", {"gradient_accumulation_steps": 0}, "at least 1, not 0"),
    ("ddp", {"version": "2.5.0"}, "use 2.5.1"),
]


@pytest.mark.parametrize(("library", "fields", "words"), REFUSED_BY_EACH)
def test_refused_in_one_sentence(library, fields, words):
    with pytest.raises(PlanError) as refusal:
        Plan(library=library, **fields)
    assert words in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_offloading_of_2_2_0_and_the_library_of_a_class_are_fixed():
    fields = {"library": "smp-v2", "activation_checkpointing": "each", "offload_activations": True}
    assert Plan(**fields).parameters["sm_activation_offloading"] is True
    assert Plan(**fields, version="2.2.0").parameters["sm_activation_offloading"] is False
    with pytest.raises(PlanError, match=r"does not work in 2\.2\.0"):
        Plan(**fields, version="2.2.0", sm_activation_offloading=True)

    with pytest.raises(PlanError, match="library must be 'smp-v2' for SmpV2Plan"):
        get_library("smp-v2").plan(library="ddp")


# -- clusters, models and jobs


@pytest.mark.parametrize(
    ("fields", "model", "words"),
    [
        ({"hybrid_shard_degree": 3}, LLAMA, "hybrid_shard_degree (3) must divide the 16 GPUs"),
        ({"hybrid_shard_degree": 16, "tensor_parallel_degree": 2}, LLAMA, "must divide the 8 GPUs"),
        ({"tensor_parallel_degree": 3}, LLAMA, "16 GPUs are not a multiple of tensor_parallel_degree x context"),
        ({"tensor_parallel_degree": 2}, GPT, "for the families gpt_neox, llama, mistral, mixtral only, not for gpt2"),
        ({"expert_parallel_degree": 2}, LLAMA, "only, not for llama: set expert_parallel_degree to 1"),
        ({"expert_parallel_degree": 16}, MIXTRAL, "must divide the model's 8 experts"),
        ({"context_parallel_degree": 2}, MIXTRAL, "not for mixtral"),
        ({"fp8": True}, LLAMA, "does not compute in fp8"),
    ],
)
def test_what_does_not_suit_smp_v2(fields, model, words):
    plan = Plan(library="smp-v2", **fields)
    job = Job(sequence_length=512, precision="bf16", fp8=plan.fp8)
    assert any(words in sentence for sentence in mismatches(plan, P4D_2, model, job))


def test_what_suits_smp_v2():
    job = Job(sequence_length=512, precision="bf16")
    for model, fields in (
        (LLAMA, {"hybrid_shard_degree": 4, "tensor_parallel_degree": 2, "context_parallel_degree": 2}),
        (MIXTRAL, {"hybrid_shard_degree": 8, "expert_parallel_degree": 2}),
        (GPT, {"hybrid_shard_degree": 16, "distributed_backend": "smddp"}),
    ):
        assert list(mismatches(Plan(library="smp-v2", **fields), P4D_2, model, job)) == []
    there = Cluster("ml.p5.48xlarge", 2)
    assert any("smddp" in one for one in mismatches(Plan(library="smp-v2", distributed_backend="smddp"), there))


def test_groups_and_batches():
    shared = Plan(library="smp-v2", tensor_parallel_degree=2, context_parallel_degree=2, batch_size=3)
    assert shard_degree(shared, P4D_2) == 8
    assert global_batch_size(shared, P4D_2) == 12
    assert shard_degree(Plan(library="smp-v2"), P4D_2) == 16
    assert shard_degree(Plan(library="smp-v2", expert_parallel_degree=2), P4D_2) == 8
    assert shard_degree(Plan(library="fsdp", sharding_strategy="hybrid_shard"), P4D_2) == 8
    assert shard_degree(Plan(library="ddp"), P4D_2) == 1
    accumulated = Plan(library="ddp", batch_size=2, gradient_accumulation_steps=4)
    assert global_batch_size(accumulated, P4D_2) == 128
    staged = Plan(library="smp-v1-tensorflow", partitions=4, microbatches=2, batch_size=4, horovod=True)
    assert global_batch_size(staged, P4D_2) == 16
    assert any("horovod is off" in one for one in mismatches(replace(staged, horovod=False), P4D_2))


# -- images and instances


def test_images_are_pairs_of_the_allow_list():
    found = {(one.version, one.framework_version, one.py_version) for one in images("smp-v2")}
    assert ("2.8.0", "2.5.1", "py311") in found
    assert ("2.7.0", "2.4.1", "py311") in found
    assert all(version != framework for version, framework, _ in found if version != "2.2.0")
    assert all(one.account == "658645717510" and one.tag.startswith(one.framework_version) for one in images("smp-v2"))
    assert image("training-compiler", "1.11.0").transformers_version == "4.21.1"
    assert image("training-compiler", "1.13.1").estimator == "PyTorch"
    assert image("smp-v1-tensorflow", "1.4.0").estimator == "TensorFlow"

    for one in images("smp-v2"):
        if one.superseded_by:
            assert image("smp-v2", one.superseded_by).tag == one.tag


def test_where_each_library_runs():
    assert require_supported_instance("smp-v2", "ml.p5.48xlarge") == ""
    assert "not in a confirmed AWS list" in require_supported_instance("smp-v2", "ml.g5.48xlarge")
    with pytest.raises(InstanceError, match=r"ml.p3dn.24xlarge is not on AWS's list for SMP v2"):
        require_supported_instance("smp-v2", "ml.p3dn.24xlarge")
    with pytest.raises(InstanceError, match="on the families p3, p3dn, g4dn, p4d, g5 only"):
        require_supported_instance("training-compiler", "ml.p4de.24xlarge")
    assert require_supported_instance("training-compiler", "ml.g5.xlarge") == ""
    assert require_supported_instance("ddp", "ml.g6.xlarge") == ""
    with pytest.raises(InstanceError, match="has no code for sm_90"):
        require_supported_instance("smp-v1-tensorflow", "ml.p5.48xlarge")


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_suggested_is_supported_and_not_being_phased_out(library):
    suggested = suggested_instances(library)
    assert suggested
    assert set(suggested) <= set(supported_instances(library))
    assert not any("V100" in machine.gpu for machine in suggested)
