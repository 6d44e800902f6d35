"""Jobs on AWS, started, watched and calibrated with: the real SDK and child processes against a mock of AWS."""

import json
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from botocore.stub import Stubber

import smp_advisor as smpa
from smp_advisor.errors import AdvisorError, RunError
from smp_advisor.runs.cloudwatch import main
from smp_advisor.runs.sources import TrainingJob
from smp_advisor.runs.start import plan_tag
from smp_advisor.runs.watching import Run
from tests.moto_harness.proxy import mock_account
from tests.runs.logs import exported

pytestmark = [pytest.mark.moto, pytest.mark.slow]

GROUP = "/aws/sagemaker/TrainingJobs"
P4D, P3DN = "ml.p4d.24xlarge", "ml.p3dn.24xlarge"
ENVIRONMENTS = Path(__file__).parents[2] / ".venv-sdk"


@pytest.fixture(scope="module")
def account():
    """A mock account that child processes reach."""
    with mock_account() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        found.client("logs").create_log_group(logGroupName=GROUP)
        yield found


@pytest.fixture(scope="module")
def started(account, advice, tmp_path_factory):
    """A job of the advice, started with its cell."""
    assert account.jobs() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        return advice.start(confirm=True, sdk="v2")


def write(account, job, text, *, stream="algo-1-1700000000"):
    """Append lines to the log of a job."""
    logs, name = account.client("logs"), f"{job}/{stream}"
    if not logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=name)["logStreams"]:
        logs.create_log_stream(logGroupName=GROUP, logStreamName=name)
    now = int(time.time() * 1000)
    events = [{"timestamp": now + row, "message": line} for row, line in enumerate(text.splitlines())]
    logs.put_log_events(logGroupName=GROUP, logStreamName=name, logEvents=events)


def create(account, name, count=1, **settings):
    """A job that somebody created without the advisor."""
    account.client("sagemaker").create_training_job(
        TrainingJobName=name,
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
        RoleArn="arn:aws:iam::123456789012:role/FakeRole",
        OutputDataConfig={"S3OutputPath": "s3://bucket"},
        HyperParameters=settings,
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": count, "VolumeSizeInGB": 10},
        StoppingCondition={"MaxRuntimeInSeconds": 10},
    )


def measure(account, job, *values, seconds=-30):
    """Metrics of hosts of a job: number of the host, metric, value."""
    account.client("cloudwatch").put_metric_data(
        Namespace=GROUP,
        MetricData=[
            {
                "MetricName": metric,
                "Dimensions": [{"Name": "Host", "Value": f"{job}/algo-{host}"}],
                "Timestamp": datetime.now(UTC) + timedelta(seconds=seconds),
                "Value": value,
            }
            for host, metric, value in values
        ],
    )


def test_nothing_starts_without_its_price_being_confirmed(advice, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RunError, match=r"Nothing was started.*\$[\d.]+ per hour.*confirm=True") as caught:
        advice.start(folder=folder, sdk="v2")
    assert "\n" not in str(caught.value)
    assert not folder.exists()


def test_another_kernel_watches_the_job_with_its_prediction(account, started, advice, tmp_path, monkeypatch):
    (job,) = account.jobs()
    tags = account.client("sagemaker").list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    assert {"Key": "smp-advisor-plan", "Value": plan_tag(advice)} in tags
    monkeypatch.chdir(tmp_path)
    write(account, started.name, exported([9.0, *[3.0] * 12]))
    measure(account, started.name, (1, "GPUUtilization", 760.0), (2, "GPUMemoryUtilization", 400.0))
    run = smpa.watch(started.name)
    assert (run.advice.job, run.advice.plan, run.advice.estimate) == (advice.job, advice.plan, advice.estimate)
    assert "in the environment of the job" in run.notes[0]
    assert run.step == 13
    assert run.typical.seconds == pytest.approx(3.0)
    assert run.requests <= 4
    before = run.requests
    write(account, started.name, exported([3.1] * 10, first=14))
    run.poll()
    assert run.requests - before <= 4
    assert run.step == 23
    calibrated = run.calibrated()
    assert calibrated.learned is not None
    low, high = calibrated.estimate.step_seconds_range
    assert low < 3.0 < high


def own_model():
    """A profiled module that no table or configuration describes."""
    torch = pytest.importorskip("torch")
    layers = (torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(2))
    module = torch.nn.Sequential(torch.nn.Embedding(1000, 256), *layers, torch.nn.Linear(256, 1000))
    return smpa.Model.from_profile(smpa.profile(module, smpa.Job(sequence_length=128), stages=("trace",)))


WATCHED = (
    "import sys, json, smp_advisor as smpa; run = smpa.watch(sys.argv[1]); print(run.estimate.step_seconds, *run.notes)"
)


@pytest.mark.release  # a job is watched above; `test_watching` holds that a cell carries the prediction of any model
@pytest.mark.torch
@pytest.mark.parametrize(
    ("model", "instance", "library", "sdk"),
    [(own_model, P4D, "fsdp", "v3"), ("1.3B", P4D, "fsdp", "v2"), ("124M", P3DN, "training-compiler", "v3")],
)
def test_a_new_process_finds_the_prediction_of_any_model_in_its_job(
    account, tmp_path, monkeypatch, model, instance, library, sdk
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    advice = smpa.advise(model() if callable(model) else model, instance, library=library, script="train.py")
    learned = advice.calibrate(step_seconds=1.2 * advice.estimate.step_seconds, plan=advice.plan)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(ENVIRONMENTS / f"{sdk}-newest/bin/python"))
        started = learned.start(confirm=True, sdk=sdk)
    (tmp_path / "other").mkdir()
    command = [sys.executable, "-c", WATCHED, started.name]
    shown = subprocess.run(command, cwd=tmp_path / "other", stdout=subprocess.PIPE, text=True, check=True).stdout
    assert float(shown.split()[0]) == learned.estimate.step_seconds
    assert "in the environment of the job" in shown


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", ""),
        ("ValidationException", "The request was rejected because the training job is in status Stopped."),
        ("AccessDeniedException", "User: user/a is not authorized to perform: sagemaker:StopTrainingJob"),
    ],
)
def test_a_job_is_stopped_or_the_answer_of_aws_is_the_reason(account, monkeypatch, capsys, code, message):
    def child(*words):
        main([*words])
        return json.loads(capsys.readouterr().out)

    client = account.client("sagemaker")
    monkeypatch.setattr("boto3.client", lambda *_, **__: client)
    monkeypatch.setattr("smp_advisor.runs.sources.child", child)
    with Stubber(client) as aws:
        aws.add_client_error("stop_training_job", code, message) if code else aws.add_response("stop_training_job", {})
        with pytest.raises(RunError, match="llm was not stopped") if code else nullcontext() as caught:
            Run(TrainingJob("llm")).stop()
        aws.assert_no_pending_responses()
    assert not code or str(caught.value).endswith(f"AWS refused StopTrainingJob: {message}")


def test_a_job_without_a_prediction_is_compared_with_its_request(account, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {
        "sagemaker_mpi_enabled": "true",
        "mp_parameters": json.dumps({"ddp": True, "microbatches": 1, "sharded_data_parallel_degree": 8}),
        "batch_size": "4",
        "bf16": "1",
        "num_layers": "24",
        "hidden_width": "2048",
        "num_heads": "16",
        "vocab_size": "50257",
        "max_context_width": "1024",
    }
    create(account, "by-hand", **settings)
    run = smpa.watch("by-hand")
    assert run.advice is not None, run.notes
    assert "in the request of the job" in " ".join(run.notes)
    assert run.advice.plan.library == "smp-v1"


def test_a_job_calibrates_with_its_log_or_else_the_peak_of_its_metrics(account, advice):
    create(account, "llm-1", 2)
    write(account, "llm-1", exported([90.0, *[3.0] * 40]))
    create(account, "metrics-only", 2)
    measure(account, "metrics-only", (2, "GPUMemoryUtilization", 400.0), seconds=1)
    learned = advice.calibrate(smpa.watch("llm-1")).calibrate(smpa.watch("metrics-only", advice))
    first, second = learned.job.calibration.runs
    assert first.step_seconds == pytest.approx(3.0)
    assert (first.memory_kind, first.memory_gib, first.source) == ("reserved", 24.0, "exported script: llm-1")
    assert "40 of 41 values" in " ".join(first.notes)
    assert (second.step_seconds, second.memory_kind, second.memory_gib) == (None, "total", pytest.approx(20.0))


def test_jobs_that_teach_nothing_are_refused_in_one_sentence(account, advice):
    create(account, "nothing", 2)
    other = {"cluster": smpa.Cluster("ml.p4d.24xlarge"), "plan": smpa.Plan(library="fsdp", batch_size=16)}
    for name, wrong in (("nothing", {}), ("no-such-job", {}), ("a b; rm", {}), (7, {}), ("llm-1", other)):
        with pytest.raises(AdvisorError) as caught:
            advice.calibrate(smpa.watch(name, None if wrong else advice), **wrong)
        assert "\n" not in str(caught.value)
