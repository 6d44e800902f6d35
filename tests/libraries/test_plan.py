"""A plan writes exactly what the library takes, refuses what it doesn't, and reads itself back."""

import copy
import json
import pickle
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.errors import PlanError
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


def test_reading_knows_defaults_and_older_names():
    assert Plan.from_parameters({}).ddp is False
    assert Plan.from_parameters({"fp16_params": True}).precision == "fp16"
    assert Plan.from_parameters({"fast_mode": False}, {"batch_size": 3, "learning_rate": 1e-4}).batch_size == 3


AWS_SAMPLES = tomllib.loads(Path(__file__).with_name("aws_samples.toml").read_text("utf-8"))


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


def test_offloading_of_2_2_0_and_the_library_of_a_class_are_fixed():
    fields = {"library": "smp-v2", "activation_checkpointing": "each", "offload_activations": True}
    assert Plan(**fields).parameters["sm_activation_offloading"] is True
    assert Plan(**fields, version="2.2.0").parameters["sm_activation_offloading"] is False

    with pytest.raises(PlanError, match="library must be 'smp-v2' for SmpV2Plan"):
        get_library("smp-v2").plan(library="ddp")


# -- clusters, models and jobs


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
    assert require_supported_instance("training-compiler", "ml.g5.xlarge") == ""
    assert require_supported_instance("ddp", "ml.g6.xlarge") == ""


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_suggested_is_supported_and_not_being_phased_out(library):
    suggested = suggested_instances(library)
    assert suggested
    assert set(suggested) <= set(supported_instances(library))
    assert not any("V100" in machine.gpu for machine in suggested)
