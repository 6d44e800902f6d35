"""An emitted cell sends the training job that the plan says: compared with requests written out by hand."""

from __future__ import annotations

import json
import re

import pytest

from smp_advisor.export import estimator_cell, script_cell, training_script
from tests.export.examples import CASES
from tests.export.reading import replaced, typed
from tests.moto_harness.notebooks import run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow]

GPUDIRECT = "-x FI_EFA_USE_DEVICE_RDMA=1 -x FI_PROVIDER=efa -x RDMAV_FORK_SAFE=1"

# Learning rates: GPT-3's table 2.1, interpolated over the logarithm of the parameters, times the square root of the
# ratio of the batches in tokens, at least a quarter and at most twice of it. Worked out by hand.


def row(instances, mpi_options, degrees, script, *, optimize="speed", **parameters):
    """A row: pipeline degree, tensor degree, microbatches; batch, checkpointing, precision, length, learning rate."""
    names = ("batch_size", "activation_checkpointing", "precision", "sequence_length", "learning_rate")
    of_library = zip(("pipeline_parallel_degree", "tensor_parallel_degree", "microbatches"), degrees, strict=True)
    return {
        "instances": instances,
        "mpi_options": mpi_options,
        "parameters": dict(of_library) | {"ddp": True, "optimize": optimize} | parameters,
        "script": dict(zip(names, script, strict=True)) | {"max_steps": 100, "warmup_steps": 20},
    }


P4D, P3 = ("ml.p4d.24xlarge", 16, 8), ("ml.p3.16xlarge", 2, 8)
SHARDED = {"prescaled_batch": True, "shard_optimizer_state": True, "fp16": True}
EXPECTED = {
    "10 B": row(P4D, GPUDIRECT, (1, 4, 1), (40, "each", "fp16", 512, 6.2e-05), **SHARDED),
    "30 B": row(P4D, GPUDIRECT, (1, 8, 1), (32, "each", "fp16", 512, 2.9e-05), **SHARDED),
    "60 B": row(
        *(("ml.p4d.24xlarge", 32, 8), GPUDIRECT, (2, 8, 4), (56, "each", "fp16", 512, 3.1e-05)),
        pipeline="interleaved",
        **SHARDED,
    ),
    "pipeline": row(
        *(P3, None, (4, 1, 8), (8, "none", "fp16", 1024, 0.00015)),
        optimize="memory",
        active_microbatches=8,
        pipeline="simple",
        placement_strategy="spread",
        fp16=True,
    ),
    "sharded data parallelism": row(
        *(("ml.p4d.24xlarge", 4, 8), GPUDIRECT, (1, 1, 1), (8, "each", "bf16", 2048, 0.00061)),
        sharded_data_parallel_degree=32,
        sdp_reduce_bucket_size=500_000_000,
        sdp_hierarchical_allgather=False,
        sdp_gradient_clipping=0.5,
        bf16=True,
        delayed_parameter_initialization=True,
        skip_tracing=True,
        ddp_dist_backend="auto",
    ),
    "offload": row(
        *(("ml.p4de.24xlarge", 2, 8), GPUDIRECT, (1, 8, 1), (4, "group_2", "fp16", 2048, 0.00031)),
        fp16=True,
        offload_activations=True,
        activation_loading_horizon=2,
    ),
    "p3dn": row(
        *(("ml.p3dn.24xlarge", 2, 8), "-x FI_PROVIDER=efa -x RDMAV_FORK_SAFE=1", (1, 2, 1)),
        (16, "none", "fp32", 512, 0.0001),
        memory_weight=0.3,
    ),
    "g4dn": row(
        *(("ml.g4dn.12xlarge", 1, 4), None, (4, 1, 4), (4, "none", "fp16", 512, 0.00015)),
        pipeline="interleaved",
        fp16=True,
    ),
}
# 256 GPUs / 2 / 8 = 16 replicas of 56 samples of 512 tokens: 10e9 tokens take 21,799 steps.
EXPECTED["60 B"]["script"] |= {"max_steps": 21_799, "warmup_steps": 218, "checkpoint_every": 992}

DATA = "s3://bucket/train"
CHECKPOINTS = {"S3Uri": "s3://sagemaker-us-west-2-123456789012/smp-60-B-GPT-2-ID/checkpoints"}
SDK_OWN = {"sagemaker_submit_directory", "sagemaker_job_name"}
"""Hyperparameters with the time in them."""


def expected_request(name):
    expected = EXPECTED[name]
    instance_type, instance_count, processes = expected["instances"]
    hyperparameters = expected["script"] | {
        "sagemaker_program": "train_smp.py",
        "sagemaker_container_log_level": 20,
        "sagemaker_region": "us-west-2",
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": processes,
        "sagemaker_mpi_custom_mpi_options": expected["mpi_options"] or "",
        "mp_parameters": expected["parameters"],
        "sagemaker_distributed_dataparallel_enabled": False,
        "sagemaker_instance_type": instance_type,
    }
    return {
        "instance_type": instance_type,
        "instance_count": instance_count,
        "volume_gb": 100 if name != "60 B" else 212,  # three checkpoints of 20 bytes per parameter over 32 nodes
        "image": "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:1.13.1-gpu-py39",
        "channels": {"train": DATA},
        "role": "arn:aws:iam::123456789012:role/SageMakerRole",
        # the upper end of the interval, in full hours; the others are trials.
        "run_seconds": 3600 if name != "60 B" else 72 * 3600,
        "profiler": {"DisableProfiler": True},
        "debugger_hook": None,
        "checkpoints": None if name != "60 B" else CHECKPOINTS,
        "waited": False,
        "hyperparameters": hyperparameters,
    }


def sent_request(result):
    """The same facts of what a notebook sent."""
    (request,) = result["requests"]
    resources = request["ResourceConfig"]
    hyperparameters = {
        key: json.loads(value) for key, value in request["HyperParameters"].items() if key not in SDK_OWN
    }
    return {
        "instance_type": resources["InstanceType"],
        "instance_count": resources["InstanceCount"],
        "volume_gb": resources["VolumeSizeInGB"],
        "image": request["AlgorithmSpecification"]["TrainingImage"],
        "channels": {
            channel["ChannelName"]: channel["DataSource"]["S3DataSource"]["S3Uri"]
            for channel in request.get("InputDataConfig", [])
        },
        "role": request["RoleArn"],
        "run_seconds": request["StoppingCondition"]["MaxRuntimeInSeconds"],
        "profiler": request.get("ProfilerConfig"),
        "debugger_hook": request.get("DebugHookConfig"),
        "checkpoints": json.loads(re.sub("-[0-9a-f]{8}/", "-ID/", json.dumps(request.get("CheckpointConfig")))),
        "waited": "DescribeTrainingJob" in result["operations"],
        "hyperparameters": hyperparameters,
    }


def differences(result, name):
    """What a notebook sent that is not what the plan of that name says."""
    if result["error"] or len(result["requests"]) != 1:
        return [result["error"] or "no request"]
    expected, sent = typed(expected_request(name)), typed(sent_request(result))
    sent_values = [f"{key}: {sent[key]} instead of {value}" for key, value in expected.items() if sent[key] != value]
    files = {"train_smp.py": training_script(*CASES[name].parts), "requirements.txt": "transformers==4.21.0\n"}
    if result["files"] != files:
        sent_values.append(f"source: {sorted(result['files'])}")
    return sent_values


def steps(name):
    """Steps of a trial, for a job that has no number of tokens."""
    return {} if name == "60 B" else {"extra_hyperparameters": {"max_steps": 100}}


def notebook(name, change=lambda cell: cell):
    parts = CASES[name].parts
    return [script_cell(*parts), change(estimator_cell(*parts, data=DATA, **steps(name)))]


MUTATIONS = {
    "fewer instances": ("10 B", replaced("instance_count=16", "instance_count=8")),
    "dropped parameter": ("10 B", replaced('"shard_optimizer_state": True,', "")),
    "added parameter": ("10 B", replaced('"ddp": True,', '"ddp": True, "skip_tracing": True,')),
    "integer as float": ("10 B", replaced('"tensor_parallel_degree": 4', '"tensor_parallel_degree": 4.0')),
    "boolean as integer": ("10 B", replaced('"prescaled_batch": True', '"prescaled_batch": 1')),
    "fewer processes": ("10 B", replaced('"processes_per_host": 8', '"processes_per_host": 4')),
    "other framework": (
        "10 B",
        replaced('"1.13.1",\n    py_version="py39"', '"1.12.1",\n    py_version="py38"'),
    ),
    "other checkpointing": ("offload", replaced('"group_2"', '"each"')),
    "profiler on": ("10 B", replaced("disable_profiler=True", "disable_profiler=False")),
    "other data": ("10 B", replaced(DATA, "s3://bucket/test")),
    "other script": ("10 B", replaced("write_bytes(script.read_bytes())", 'write_text("pass")')),
}

HOSTILE = 's3://bucket/it\'s "quoted" {braces} %s $HOME {{ inputs }}\\n é\u2028日本/'


@pytest.fixture(scope="module")
def results():
    notebooks = {name: notebook(name) for name in CASES}
    notebooks |= {name: notebook(case, change) for name, (case, change) in MUTATIONS.items()}
    parts = CASES["10 B"].parts
    notebooks["as a user"] = notebook("10 B")
    notebooks["no data at all"] = [script_cell(*parts), estimator_cell(*parts)]
    notebooks["hostile data"] = [script_cell(*parts), estimator_cell(*parts, data=HOSTILE, **steps(""))]
    notebooks["channels, checkpoints, name"] = [
        script_cell(*parts),
        estimator_cell(
            *parts,
            data={"train": DATA, "validation": "s3://bucket/held-out"},
            checkpoints="s3://bucket/checkpoints/1",
            job_name="my-run",
            max_run_seconds=3600,
            extra_hyperparameters={"learning_rate": 3e-4, "note": "it's {mine}", "max_steps": 7},
        ),
    ]
    notebooks["own script"] = [
        "%%writefile mine.py\nprint('mine')\n",
        estimator_cell(*parts, script="mine.py", data=DATA, **steps("")),
    ]
    notebooks["own directory"] = [
        "import os; os.mkdir('code')",
        "%%writefile code/mine.py\nprint('mine')\n",
        estimator_cell(*parts, script="mine.py", source_dir="code", data=DATA, **steps("")),
    ]
    notebooks["cells again"] = [cell for _ in range(2) for cell in notebook("10 B")]
    return run_notebooks(notebooks)


@pytest.mark.parametrize("name", CASES)
def test_request_is_what_the_plan_says(results, name):
    assert differences(results[name], name) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_cell_does_not_pass_for_the_plan(results, name):
    """The comparison above can fail: each of these cells differs from the plan in one thing."""
    assert differences(results[name], MUTATIONS[name][0])


def test_nothing_but_the_mock_was_reached(results):
    assert {host for result in results.values() for host in result["refused"]} == set()


def test_job_is_named_and_found_in_the_console(results):
    printed = results["10 B"]["printed"]
    name = results["10 B"]["requests"][0]["TrainingJobName"]
    assert name.startswith("smp-10-B-GPT-2-")
    console = "https://us-west-2.console.aws.amazon.com/sagemaker/home?region=us-west-2#/jobs/"
    assert f"Started {name}: {console}{name}" in printed


def test_without_an_execution_role_the_cell_says_what_to_set(results):
    result = results["as a user"]
    assert result["requests"] == []
    last = result["error"].strip().splitlines()[-1]
    assert last == (
        "RuntimeError: These credentials are not those of a SageMaker execution role: set role above to its ARN."
    )


def test_job_without_data_has_no_channels(results):
    assert results["no data at all"]["error"] is None
    assert "InputDataConfig" not in results["no data at all"]["requests"][0]


def test_text_arrives_as_it_was_given(results):
    assert sent_request(results["hostile data"])["channels"] == {"train": HOSTILE}


def test_everything_a_user_adds_arrives(results):
    result = results["channels, checkpoints, name"]
    sent = sent_request(result)
    assert sent["channels"] == {"train": DATA, "validation": "s3://bucket/held-out"}
    assert sent["checkpoints"]["S3Uri"] == "s3://bucket/checkpoints/1"
    assert sent["run_seconds"] == 3600
    assert result["requests"][0]["TrainingJobName"].startswith("my-run-")
    added = {"learning_rate": 3e-4, "note": "it's {mine}", "max_steps": 7, "checkpoint_every": 7}
    assert added.items() <= sent["hyperparameters"].items()


@pytest.mark.parametrize("name", ["own script", "own directory"])
def test_own_script_is_uploaded_alone(results, name):
    assert results[name]["error"] is None
    assert results[name]["files"] == {"mine.py": "print('mine')\n"}
    assert json.loads(results[name]["requests"][0]["HyperParameters"]["sagemaker_program"]) == "mine.py"


def test_cells_can_be_run_again(results):
    assert results["cells again"]["error"] is None
    assert len(results["cells again"]["requests"]) == 2
