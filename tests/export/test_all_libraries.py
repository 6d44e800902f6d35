"""The job of every library, as emitted for both major versions of the SDK, and the cells beside it, sent to a mock."""

import json
from dataclasses import replace

import pytest
import yaml

from smp_advisor.cluster import Cluster
from smp_advisor.cluster.table import table_date
from smp_advisor.export import (
    estimator_cell,
    monitoring_cell,
    permissions_cell,
    quota_cell,
    script_cell,
)
from smp_advisor.libraries import Plan
from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.job import Job
from tests.export.examples import P4D, TASKS, training_script
from tests.export.random_jobs import RandomJob, differences
from tests.export.test_account import BUCKET, OPTIONS
from tests.moto_harness.notebooks import ENVIRONMENTS, run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow]

JOB, TWO, ONE = Job(sequence_length=32), Cluster(P4D, 2), Cluster(P4D)
GPT2, LLAMA = TASKS["gpt2"], TASKS["llama"]
FSX = "fsx://fs-0123456789abcdef0/fsx"
PLACED = {
    "data": {"train": f"{FSX}/train", "validation": "s3://bucket/held-out"},
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
}
SMP_V1 = Plan(tensor_parallel_degree=4, fp16=True, batch_size=4)
TENSORFLOW = Plan(library="smp-v1-tensorflow", partitions=2, microbatches=2, batch_size=4, horovod=True)
COMPILER = Plan(library="training-compiler", batch_size=4)
# A container that the oldest SDK launches with torchrun, too.
DDP = Plan(library="ddp", version="2.5.1", batch_size=4)
JOBS = {
    "SMP v1": (GPT2, TWO, SMP_V1),
    "SMP v1 TensorFlow": (GPT2, ONE, TENSORFLOW),
    "SMP v2": (LLAMA, TWO, Plan(library="smp-v2", hybrid_shard_degree=8, tensor_parallel_degree=2, batch_size=4)),
    "Training Compiler, PyTorch": (GPT2, ONE, COMPILER),
    "Training Compiler, one GPU": (GPT2, Cluster("ml.g5.2xlarge"), replace(COMPILER, version="1.11.0")),
    "FSDP": (LLAMA, TWO, Plan(library="fsdp", version="2.6.0", batch_size=4)),
    "DDP": (GPT2, TWO, DDP),
}
"""Model, cluster and plan by library."""
WAITING = {"spot": True, "max_run_seconds": 3600, "max_wait_seconds": 7200}
MORE = {
    "FSx, warm pool": {"checkpoints": f"{FSX}/checkpoints", "keep_alive_seconds": 600} | PLACED,
    "spot": {"checkpoints": "s3://bucket/checkpoints", "data": "s3://bucket/train"} | WAITING,
}
"""Options of more jobs of SMP v1 and DDP, which version 3 of the SDK starts differently."""
ALL = {
    "FSDP, all options": (LLAMA, Plan(library="fsdp", version="2.8.0", precision="fp16", batch_size=4)),
    "SMP v1, all options": (GPT2, SMP_V1),
}


TUNING = {
    "full": ({"training": "fine-tuning"}, None, 1),
    "lora": ({"adapter": Adapter()}, None, 5),
    "qlora": ({"adapter": Adapter(base_bits=4)}, None, 5),
    "dpo": ({"adapter": Adapter()}, "dpo", 1),
}
"""Settings of the job, objective and epochs of each kind of fine-tuning."""


def drawn_jobs(environment):
    """Jobs by name, whose requests are worked out apart."""
    given, jobs = {"job_name": "run", "extra_hyperparameters": {"max_steps": 100}}, {}

    def add(name, model, cluster, plan, **options):
        job = replace(JOB, precision=plan.precision)
        jobs[name] = RandomJob(model, cluster, job, plan, environment[:2], given | options)

    for name, parts in JOBS.items():
        # The oldest SDK has no image whose PyTorch the script of FSDP supports.
        if (name, environment) != ("FSDP", "v2-oldest"):
            add(name, *parts, data="s3://bucket/train")
    for name in ("SMP v1", "DDP"):
        for kind, options in MORE.items():
            add(f"{name}: {kind}", *JOBS[name], **options)
    for name, (model, plan) in ALL.items():
        add(name, model, Cluster("ml.p3.16xlarge", 2), plan, **OPTIONS)
    return jobs


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


def notebooks(environment):
    sdk, cells = environment[:2], {}
    for name, job in drawn_jobs(environment).items():
        cells[name] = [BUCKET, script_cell(*job.parts), estimator_cell(*job.parts, sdk=sdk, **job.options)]
    for name in ("SMP v1", "DDP"):
        model, cluster, plan = JOBS[name]
        cells[f"{name}: own script"] = [
            "import os; os.mkdir('code')",
            "%%writefile code/mine.py\nprint('mine')\n",
            estimator_cell(model, cluster, JOB, plan, sdk=sdk, script="code/mine.py"),
        ]
    cells["as a user"] = [script_cell(GPT2, TWO, JOB, DDP), estimator_cell(GPT2, TWO, JOB, DDP, sdk=sdk)]
    cells["monitoring"] = [METRICS.replace("{job}", "a-job"), monitoring_cell(TWO), AFTER]
    cells["monitoring without a job"] = [monitoring_cell(TWO)]
    cells["permissions"] = [permissions_cell(TWO, DDP, **PLACED)]
    given = permissions_cell(TWO, DDP, data="s3://bucket/train")
    cells["permissions given"] = [given.replace("role_name = None", "role_name = 'SageMakerRole'")]
    cells["quota"] = [quota_cell(TWO)]
    channels = {"data": {"train": "s3://bucket/chats", "model": "s3://bucket/llama"}}
    for kind, (settings, objective, _) in TUNING.items():
        parts = (LLAMA, TWO, replace(JOB, precision="bf16", **settings), Plan(library="fsdp", batch_size=4))
        cells[f"TRL, {kind}"] = [
            script_cell(*parts, objective=objective),
            estimator_cell(*parts, sdk=sdk, objective=objective, **channels),
        ]
    return cells


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def ran(request):
    return request.param, run_notebooks(notebooks(request.param), request.param)


def test_each_job_is_the_plan_with_every_option(ran):
    """Of each library and SDK; a file system for data and checkpoints, a warm pool, spot, the options of an account."""
    environment, results = ran
    for name, job in drawn_jobs(environment).items():
        # The first releases of version 3 have no metrics.
        ignored = {"metrics"} if environment == "v3-oldest" else set()
        assert differences(job, results[name], generated=True, ignored=ignored) == [], name
        files = results[name]["files"]
        assert files[script_cell(*job.parts).split(None, 2)[1]] == training_script(*job.parts), name
        needs = name not in {"SMP v1 TensorFlow", "Training Compiler, one GPU"}
        assert ("transformers==" in files["requirements.txt"]) is needs, name


@pytest.mark.parametrize("library", ["SMP v1", "DDP"])
def test_own_scripts_are_run(ran, library):
    """Version 2 uploads the file alone and calls it by its name, as version 3's cell does."""
    result = ran[1][f"{library}: own script"]
    assert result["error"] is None, result["error"]
    assert list(result["files"]) == ["mine.py"]
    assert result["program"] == "mine.py"


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


@pytest.mark.parametrize("kind", TUNING)
def test_fine_tuning_runs_in_an_image_that_aws_patches(ran, kind):
    _, results = ran
    result = results[f"TRL, {kind}"]
    assert result["error"] is None, result["error"]
    (request,) = result["requests"]
    assert "/pytorch:2.13" in request["AlgorithmSpecification"]["TrainingImage"]
    assert json.loads(request["HyperParameters"]["epochs"]) == TUNING[kind][2]
    assert {"train", "model"} <= {channel["ChannelName"] for channel in request["InputDataConfig"]}
    written = yaml.safe_load(result["files"]["train.yaml"])
    assert written["settings"]["per_device_train_batch_size"] == (2 if kind == "dpo" else 4)
    assert written["settings"].get("load_in_4bit", False) is (kind == "qlora")
    assert written["sizes"]["hidden_size"] == 32


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
