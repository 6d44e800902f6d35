"""The job of every library, as emitted for both major versions of the SDK, and the cells beside it, sent to a mock."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.cluster.table import table_date
from smp_advisor.export import (
    estimator_cell,
    monitoring_cell,
    permissions_cell,
    quota_cell,
    script_cell,
    training_script,
)
from smp_advisor.libraries import Plan
from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.job import Job
from tests.export.examples import P4D, TASKS, Case
from tests.moto_harness.notebooks import ENVIRONMENTS, run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow]

JOB = Job(sequence_length=32)
TWO = Cluster(P4D, 2)
GPT2, LLAMA = TASKS["gpt2"], TASKS["llama"]
PLAIN = "2.5.1-gpu-py311"
"""A container that the oldest SDK launches with torchrun, too."""
DLC = "763104351884.dkr.ecr.us-west-2.amazonaws.com"
SMP = "658645717510.dkr.ecr.us-west-2.amazonaws.com"
RDMA = "-x FI_EFA_USE_DEVICE_RDMA=1 -x FI_PROVIDER=efa -x RDMAV_FORK_SAFE=1"

JOBS = {
    "SMP v1": Case(GPT2, TWO, JOB, Plan(tensor_parallel_degree=4, fp16=True, batch_size=4)),
    "SMP v1 TensorFlow": Case(
        GPT2,
        Cluster(P4D),
        JOB,
        Plan(library="smp-v1-tensorflow", partitions=2, microbatches=2, batch_size=4, horovod=True),
    ),
    "SMP v2": Case(
        LLAMA, TWO, JOB, Plan(library="smp-v2", hybrid_shard_degree=8, tensor_parallel_degree=2, batch_size=4)
    ),
    "Training Compiler, PyTorch": Case(GPT2, Cluster(P4D), JOB, Plan(library="training-compiler", batch_size=4)),
    "Training Compiler, one GPU": Case(
        GPT2, Cluster("ml.g5.2xlarge"), JOB, Plan(library="training-compiler", version="1.11.0", batch_size=4)
    ),
    "FSDP": Case(LLAMA, TWO, JOB, Plan(library="fsdp", version="2.6.0", batch_size=4)),
    "DDP": Case(GPT2, TWO, JOB, Plan(library="ddp", version="2.5.1", batch_size=4)),
}

MPI = {
    "sagemaker_mpi_enabled": True,
    "sagemaker_mpi_num_of_processes_per_host": 8,
    "sagemaker_mpi_custom_mpi_options": RDMA,
}
EXPECTED = {
    # Instances, image, what the launcher and the library are told, what the script is told beside max_steps.
    "SMP v1": (
        ("ml.p4d.24xlarge", 2),
        f"{DLC}/pytorch-training:1.13.1-gpu-py39",
        MPI
        | {
            "mp_parameters": {
                "pipeline_parallel_degree": 1,
                "tensor_parallel_degree": 4,
                "microbatches": 1,
                "ddp": True,
                "optimize": "speed",
                "fp16": True,
            }
        },
        {"batch_size": 4, "activation_checkpointing": "none", "precision": "fp16"},
    ),
    "SMP v1 TensorFlow": (
        ("ml.p4d.24xlarge", 1),
        f"{DLC}/tensorflow-training:2.6.3-gpu-py38",
        MPI
        | {
            "mp_parameters": {
                "partitions": 2,
                "microbatches": 2,
                "pipeline": "interleaved",
                "optimize": "memory",
                "horovod": True,
            }
        },
        {"batch_size": 4, "precision": "fp32"},
    ),
    "SMP v2": (
        ("ml.p4d.24xlarge", 2),
        f"{SMP}/smdistributed-modelparallel:2.5.1-gpu-py311-cu124",
        {
            "mp_parameters": {
                "hybrid_shard_degree": 8,
                "tensor_parallel_degree": 2,
                "sm_activation_offloading": False,
            }
        },
        {
            "batch_size": 4,
            "gradient_accumulation_steps": 1,
            "precision": "bf16",
            "fp8": 0,
            "activation_checkpointing": "none",
            "offload_activations": 0,
            "sharding_strategy": "hybrid_shard",
            "delayed_parameter_initialization": 0,
            "distributed_backend": "nccl",
        },
    ),
    "Training Compiler, PyTorch": (
        ("ml.p4d.24xlarge", 1),
        f"{DLC}/pytorch-trcomp-training:1.13.1-gpu-py39",
        {
            "sagemaker_training_compiler_enabled": True,
            "sagemaker_training_compiler_debug_mode": False,
            "sagemaker_pytorch_xla_multi_worker_enabled": True,
        },
        {"batch_size": 4, "precision": "fp16"},
    ),
    "Training Compiler, one GPU": (
        ("ml.g5.2xlarge", 1),
        f"{DLC}/huggingface-pytorch-trcomp-training:1.11.0-transformers4.21.1-gpu-py38-cu113-ubuntu20.04",
        {"sagemaker_training_compiler_enabled": True, "sagemaker_training_compiler_debug_mode": False},
        {"batch_size": 4, "precision": "fp16"},
    ),
    "FSDP": (
        ("ml.p4d.24xlarge", 2),
        f"{DLC}/pytorch-training:2.6.0-gpu-py312",
        {},
        {
            "batch_size": 4,
            "gradient_accumulation_steps": 1,
            "precision": "bf16",
            "activation_checkpointing": "none",
            "sharding_strategy": "full_shard",
        },
    ),
    "DDP": (
        ("ml.p4d.24xlarge", 2),
        f"{DLC}/pytorch-training:{PLAIN}",
        {},
        {"batch_size": 4, "gradient_accumulation_steps": 1, "precision": "bf16", "activation_checkpointing": "none"},
    ),
}
TORCHRUN = {"SMP v2", "FSDP", "DDP"}
FSX = "fsx://fs-0123456789abcdef0/fsx"
METRICS = """
import boto3, datetime
job_name = "{job}"
boto3.client("logs").create_log_group(logGroupName="/aws/sagemaker/TrainingJobs")
boto3.client("logs").create_log_stream(
    logGroupName="/aws/sagemaker/TrainingJobs", logStreamName=job_name + "/algo-1-1"
)
boto3.client("logs").put_log_events(
    logGroupName="/aws/sagemaker/TrainingJobs",
    logStreamName=job_name + "/algo-1-1",
    logEvents=[{"timestamp": int(datetime.datetime.now().timestamp() * 1000), "message": "step 1 loss 4.2"}],
)
for host, value in (("algo-1", 720), ("algo-2", 80)):
    boto3.client("cloudwatch").put_metric_data(
        Namespace="/aws/sagemaker/TrainingJobs",
        MetricData=[
            {
                "MetricName": "GPUUtilization",
                "Dimensions": [{"Name": "Host", "Value": job_name + "/" + host}],
                "Timestamp": datetime.datetime.now(datetime.timezone.utc),
                "Value": value,
                "Unit": "Percent",
            }
        ],
    )
boto3.client("sagemaker").create_training_job(
    TrainingJobName=job_name,
    AlgorithmSpecification={"TrainingImage": "x", "TrainingInputMode": "File"},
    RoleArn="arn:aws:iam::123456789012:role/SageMakerRole",
    OutputDataConfig={"S3OutputPath": "s3://x"},
    ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
    StoppingCondition={"MaxRuntimeInSeconds": 1},
)
real = boto3.client("sagemaker").describe_training_job(TrainingJobName=job_name)
"""
AFTER = "print(usage['GPUUtilization'].max().to_dict())"

STEPS = {"extra_hyperparameters": {"max_steps": 100}}


def of_job(name, sdk, **options):
    parts = JOBS[name].parts
    return [script_cell(*parts), estimator_cell(*parts, sdk=sdk, data="s3://bucket/train", **STEPS | options)]


def notebooks(environment):
    sdk = environment[:2]
    # The oldest SDK has no image whose PyTorch the script of FSDP supports.
    cells = {name: of_job(name, sdk) for name in JOBS if (name, environment) != ("FSDP", "v2-oldest")}
    placed = {
        "data": {"train": f"{FSX}/train", "validation": "s3://bucket/held-out"},
        "subnets": ["subnet-1"],
        "security_group_ids": ["sg-1"],
    }
    parts = JOBS["DDP"].parts
    for name in ("SMP v1", "DDP"):
        cells[f"{name}: FSx, warm pool"] = [
            script_cell(*JOBS[name].parts),
            estimator_cell(
                *JOBS[name].parts, sdk=sdk, checkpoints=f"{FSX}/checkpoints", keep_alive_seconds=600, **placed
            ),
        ]
        cells[f"{name}: spot"] = of_job(
            name, sdk, checkpoints="s3://bucket/checkpoints", spot=True, max_run_seconds=3600, max_wait_seconds=7200
        )
    for name in ("SMP v1", "DDP"):
        cells[f"{name}: own script"] = [
            "import os; os.mkdir('code')",
            "%%writefile code/mine.py\nprint('mine')\n",
            estimator_cell(*JOBS[name].parts, sdk=sdk, script="code/mine.py"),
        ]
    cells["as a user"] = of_job("DDP", sdk)
    cells["monitoring"] = [METRICS.replace("{job}", "a-job"), monitoring_cell(TWO), AFTER]
    cells["monitoring without a job"] = [monitoring_cell(TWO)]
    cells["permissions"] = [permissions_cell(TWO, parts[3], **placed)]
    cells["permissions given"] = [
        permissions_cell(TWO, parts[3], data="s3://bucket/train").replace(
            "role_name = None", "role_name = 'SageMakerRole'"
        )
    ]
    cells["quota"] = [quota_cell(TWO)]
    tuned = Case(LLAMA, TWO, replace(JOB, precision="bf16", adapter=Adapter()), Plan(library="fsdp", batch_size=4))
    channels = {"data": {"train": "s3://bucket/chats", "model": "s3://bucket/llama"}}
    for objective in ("sft", "dpo"):
        cells[f"TRL, {objective}"] = [
            script_cell(*tuned.parts, objective=objective),
            estimator_cell(*tuned.parts, sdk=sdk, objective=objective, **channels),
        ]
    return cells


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def ran(request):
    return request.param[:2], run_notebooks(notebooks(request.param), request.param)


def decoded(value):
    try:
        return json.loads(value)
    except ValueError:
        return value


def test_each_job_is_the_plan(ran):
    sdk, results = ran
    for name in EXPECTED.keys() & results.keys():
        (instances, image, launched, settings), result = EXPECTED[name], results[name]
        assert result["error"] is None, (name, result["error"])
        (request,) = result["requests"]
        resources = request["ResourceConfig"]
        assert (resources["InstanceType"], resources["InstanceCount"]) == instances, name
        assert request["AlgorithmSpecification"]["TrainingImage"] == image, name
        sent = {key: decoded(value) for key, value in request["HyperParameters"].items()}
        if sdk == "v2" or name not in TORCHRUN:
            own = {
                "sagemaker_program",
                "sagemaker_submit_directory",
                "sagemaker_region",
                "sagemaker_container_log_level",
            }
            own |= {"sagemaker_job_name", "sagemaker_instance_type", "sagemaker_distributed_dataparallel_enabled"}
            assert sent["sagemaker_program"] == "train_smp.py", name
            sent = {key: value for key, value in sent.items() if key not in own}
        # The estimator of TensorFlow tells every script where the model goes.
        sent.pop("model_dir", None)
        if sdk == "v2" and name in TORCHRUN:
            assert sent.pop("sagemaker_torch_distributed_enabled") is True, name
        # A quarter of the rate of GPT-3's smallest model, whose batch is far larger.
        schedule = {"learning_rate": 0.00015, "warmup_steps": 20}
        assert sent == launched | settings | schedule | {"sequence_length": 32, "max_steps": 100}, name
        assert request["StoppingCondition"]["MaxRuntimeInSeconds"] == 3600, name
        channels = {channel["ChannelName"] for channel in request["InputDataConfig"]}
        assert channels == {"train"} | ({"code", "sm_drivers"} if sdk == "v3" and name in TORCHRUN else set()), name


def test_each_job_runs_the_script_of_its_library(ran):
    _, results = ran
    for name in JOBS.keys() & results.keys():
        files = results[name]["files"]
        assert files["train_smp.py"] == training_script(*JOBS[name].parts), name
        assert ("transformers==" in files["requirements.txt"]) == (
            name not in {"SMP v1 TensorFlow", "Training Compiler, one GPU"}
        )


def test_file_systems_warm_pools_and_spot_arrive(ran):
    _, results = ran
    for name in ("SMP v1", "DDP"):
        result = results[f"{name}: FSx, warm pool"]
        assert result["error"] is None, result["error"]
        (request,) = result["requests"]
        places = {
            channel["ChannelName"]: channel["DataSource"].get("FileSystemDataSource")
            for channel in request["InputDataConfig"]
        }
        lustre = {"FileSystemId": "fs-0123456789abcdef0", "FileSystemType": "FSxLustre"}
        assert places["train"] == lustre | {"FileSystemAccessMode": "ro", "DirectoryPath": "/fsx/train"}
        assert places["checkpoints"] == lustre | {"FileSystemAccessMode": "rw", "DirectoryPath": "/fsx/checkpoints"}
        assert decoded(request["HyperParameters"]["checkpoint_directory"]) == "/opt/ml/input/data/checkpoints"
        assert request["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
        assert request["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600
        (request,) = results[f"{name}: spot"]["requests"]
        assert request["EnableManagedSpotTraining"] is True
        assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
        assert request["CheckpointConfig"]["S3Uri"] == "s3://bucket/checkpoints"


def test_own_scripts_are_run(ran):
    _, results = ran
    for name in ("SMP v1", "DDP"):
        result = results[f"{name}: own script"]
        assert result["error"] is None, result["error"]
        assert list(result["files"]) == ["mine.py"]
        program = result["requests"][0]["HyperParameters"].get("sagemaker_program")
        # Version 2 uploads the file alone and calls it by its name, as version 3's cell does.
        assert program is None or decoded(program) == "mine.py"


def test_without_an_execution_role_the_cell_says_what_to_set(ran):
    _, results = ran
    assert results["as a user"]["requests"] == []
    assert results["as a user"]["error"].strip().endswith("set role above to its ARN.")


def test_monitoring_divides_by_the_gpus_of_a_host(ran):
    _, results = ran
    result = results["monitoring"]
    assert result["error"] is None, result["error"]
    assert "{'algo-1': 90.0, 'algo-2': 10.0}" in result["printed"]
    assert "step 1 loss 4.2" in result["printed"]
    assert "#/jobs/a-job" in result["printed"]
    assert "Run the cell that starts the job, or set job_name" in results["monitoring without a job"]["error"]


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_fine_tuning_runs_in_an_image_that_aws_patches(ran, objective):
    _, results = ran
    result = results[f"TRL, {objective}"]
    assert result["error"] is None, result["error"]
    (request,) = result["requests"]
    assert "/pytorch:2.13" in request["AlgorithmSpecification"]["TrainingImage"]
    assert json.loads(request["HyperParameters"]["epochs"]) == {"sft": 5, "dpo": 1}[objective]
    assert {"train", "model"} <= {channel["ChannelName"] for channel in request["InputDataConfig"]}


def test_permissions_are_printed_or_given(ran):
    _, results = ran
    printed = results["permissions"]["printed"]
    for action in ("s3:GetObject", "ecr:BatchGetImage", "fsx:DescribeFileSystems", "ec2:CreateNetworkInterface"):
        assert action in printed
    assert "arn:aws:s3:::bucket/held-out*" in printed
    assert "arn:aws:ecr:*:763104351884:repository/pytorch-training" in printed
    assert results["permissions"]["operations"] == []
    assert results["permissions given"]["operations"] == ["PutRolePolicy"]


def test_where_aws_does_not_answer_the_table_does(ran):
    """The mock has neither quotas nor prices: the cell says so and falls back."""
    _, results = ran
    result = results["quota"]
    assert result["error"] is None, result["error"]
    assert "AWS did not return the quota" in result["printed"]
    assert "AWS did not return the training plans" in result["printed"]
    assert f"$50.50 per hour for 2 x ml.p4d.24xlarge (the advisor's table of {table_date()})." in result["printed"]


def test_nothing_but_the_mock_was_reached(ran):
    _, results = ran
    assert {host for result in results.values() for host in result["refused"]} == set()
