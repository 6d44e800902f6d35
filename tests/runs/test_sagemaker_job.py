"""A SageMaker job's log and metrics, read by the child process from a mock of AWS."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from smp_advisor.errors import CalibrationError
from tests.moto_harness.proxy import Account, mock_account
from tests.runs.logs import exported

if TYPE_CHECKING:
    from collections.abc import Iterator

    import smp_advisor as smpa

pytestmark = [pytest.mark.moto, pytest.mark.slow]

GROUP = "/aws/sagemaker/TrainingJobs"


@pytest.fixture(scope="module")
def aws() -> Iterator[None]:
    """A mock account that child processes reach, with jobs on two nodes."""
    with mock_account() as account, pytest.MonkeyPatch.context() as patch:
        for name, value in account.environment.items():
            patch.setenv(name, value)
        _fill(account)
        yield


def _fill(account: Account) -> None:
    sagemaker, logs, cloudwatch = (account.client(name) for name in ("sagemaker", "logs", "cloudwatch"))
    for name in ("llm-1", "metrics-only", "nothing"):
        sagemaker.create_training_job(
            TrainingJobName=name,
            AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
            RoleArn="arn:aws:iam::123456789012:role/FakeRole",
            OutputDataConfig={"S3OutputPath": "s3://bucket"},
            ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 10},
            StoppingCondition={"MaxRuntimeInSeconds": 10},
        )
    logs.create_log_group(logGroupName=GROUP)
    stream = "llm-1/algo-1-1700000000"
    logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
    lines = exported([90.0, *[3.0] * 40]).splitlines()
    now = int(time.time() * 1000)
    logs.put_log_events(
        logGroupName=GROUP,
        logStreamName=stream,
        logEvents=[{"timestamp": now + row, "message": line} for row, line in enumerate(lines)],
    )
    cloudwatch.put_metric_data(
        Namespace=GROUP,
        MetricData=[
            {
                "MetricName": "GPUMemoryUtilization",
                "Dimensions": [{"Name": "Host", "Value": "metrics-only/algo-2"}],
                "Timestamp": datetime.now(UTC) + timedelta(seconds=1),
                "Value": 400.0,
            }
        ],
    )


@pytest.mark.usefixtures("aws")
def test_a_job_calibrates(advice: smpa.Advice) -> None:
    calibration = advice.calibrate(job_name="llm-1").job.calibration
    assert calibration is not None
    (run,) = calibration.runs
    assert run.step_seconds == pytest.approx(3.0)
    assert (run.memory_kind, run.memory_gib) == ("reserved", 24.0)
    assert run.source == "exported script: llm-1"
    assert "40 of 41 values" in " ".join(run.notes)


@pytest.mark.usefixtures("aws")
def test_without_a_log_the_metrics_are_a_peak(advice: smpa.Advice) -> None:
    calibration = advice.calibrate(job_name="metrics-only").job.calibration
    assert calibration is not None
    (run,) = calibration.runs
    assert run.step_seconds is None
    assert (run.memory_kind, run.memory_gib) == ("total", pytest.approx(20.0))


@pytest.mark.usefixtures("aws")
def test_jobs_that_teach_nothing_are_refused_in_one_sentence(advice: smpa.Advice) -> None:
    from smp_advisor import Cluster, Plan

    plan = Plan(library="fsdp", batch_size=16, precision="bf16")
    for name, others in (
        ("nothing", {}),
        ("missing", {}),
        ("a b; rm", {}),
        (7, {}),
        ("llm-1", {"cluster": Cluster("ml.p4d.24xlarge"), "plan": plan}),
    ):
        with pytest.raises(CalibrationError) as caught:
            advice.calibrate(job_name=name, **others)
        assert "\n" not in str(caught.value)


def test_the_kernel_never_imports_boto3() -> None:
    code = (
        "import sys, smp_advisor.runs as c; import smp_advisor.notebook.run_magics\n"
        "print([name for name in ('boto3', 'torch', 'sagemaker', 'pandas') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
