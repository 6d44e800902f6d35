"""A plan writes exactly what the library takes, refuses what it doesn't, and reads itself back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan, schema, violations
from tests.libraries.plans import valid_plans

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


@given(valid_plans())
def test_round_trip_through_the_json_that_travels(plan):
    parameters = json.loads(json.dumps(plan.parameters))
    assert Plan.from_parameters(parameters, plan.hyperparameters, version=plan.version) == plan


@given(valid_plans())
def test_written_parameters_are_the_versions_own_and_of_its_types(plan):
    assert set(plan.parameters) <= schema("smp-v1").keys_for(plan.version)
    assert list(violations(plan.parameters, version=plan.version, settings=plan.hyperparameters)) == []
    assert len(json.dumps(plan.parameters)) <= 2500
    assert "batch_size" not in plan.parameters
    assert "activation_checkpointing" not in plan.parameters


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
