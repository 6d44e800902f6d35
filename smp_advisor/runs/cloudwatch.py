"""Child process: reads a SageMaker training job from AWS and writes it to standard output as JSON.

usage: python -m smp_advisor.runs.cloudwatch JOB

It only reads (DescribeTrainingJob, DescribeLogStreams, GetLogEvents, GetMetricData), with the credentials and the
region of boto3's usual places. The kernel that shows the advisor never imports boto3.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

_GROUP = "/aws/sagemaker/TrainingJobs"
MOST_CHARACTERS = 16 * 2**20
"""Characters of the log that are read, from its start."""
_MOST_PAGES = 2000
_MOST_HOSTS = 16
_TIMEOUT_SECONDS = 10


def collected(name: str, boto3: Any, config: Any) -> dict[str, Any]:
    """The job's instance, status and log, and the peak of its GPU memory in percent by host."""
    job = boto3.client("sagemaker", config=config).describe_training_job(TrainingJobName=name)
    resources = job["ResourceConfig"]
    groups = resources.get("InstanceGroups") or [resources]
    log = _log(name, boto3.client("logs", config=config))
    if job.get("FailureReason"):
        log += f"\n{job['FailureReason']}"
    return {
        "instance": [group["InstanceType"] for group in groups],
        "count": sum(group["InstanceCount"] for group in groups),
        "status": job["TrainingJobStatus"],
        "log": log,
        "gpu_memory_percent": _peak(name, job, groups, boto3.client("cloudwatch", config=config)),
    }


def _log(name: str, logs: Any) -> str:
    """Log of the first host, which has the script's first process."""
    try:
        streams = logs.describe_log_streams(logGroupName=_GROUP, logStreamNamePrefix=f"{name}/algo-1-")["logStreams"]
    except logs.exceptions.ResourceNotFoundException:
        return ""
    lines: list[str] = []
    length = 0
    for stream in streams:
        token: dict[str, str] = {}
        for _ in range(_MOST_PAGES):
            page = logs.get_log_events(
                logGroupName=_GROUP, logStreamName=stream["logStreamName"], startFromHead=True, **token
            )
            lines += [event["message"] for event in page["events"]]
            length += sum(len(event["message"]) for event in page["events"])
            following = {"nextToken": page["nextForwardToken"]}
            if following == token or length > MOST_CHARACTERS:
                break
            token = following
    return "\n".join(lines)[:MOST_CHARACTERS]


def _peak(name: str, job: dict[str, Any], groups: list[dict[str, Any]], cloudwatch: Any) -> float | None:
    """Highest sum of the memory utilization of a host's GPUs in percent (100 per GPU); None without metrics."""
    begin = job.get("TrainingStartTime", job["CreationTime"]) - timedelta(minutes=1)
    end = job.get("TrainingEndTime", datetime.now(UTC)) + timedelta(minutes=1)
    hosts = min(sum(group["InstanceCount"] for group in groups), _MOST_HOSTS)
    queries = [
        {
            "Id": f"host{number}",
            "MetricStat": {
                "Metric": {
                    "Namespace": _GROUP,
                    "MetricName": "GPUMemoryUtilization",
                    "Dimensions": [{"Name": "Host", "Value": f"{name}/algo-{number}"}],
                },
                "Period": 60,
                "Stat": "Maximum",
            },
        }
        for number in range(1, hosts + 1)
    ]
    pages = cloudwatch.get_paginator("get_metric_data").paginate(
        MetricDataQueries=queries, StartTime=begin, EndTime=end
    )
    values = [value for page in pages for result in page["MetricDataResults"] for value in result["Values"]]
    return max(values, default=None)


def main(arguments: list[str]) -> int:
    """Print the job as one JSON object; with ``error``, a sentence, if it cannot be read."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        sys.stdout.write(json.dumps({"error": "boto3 is not installed here: run pip install boto3, or pass a log."}))
        return 0
    config = Config(connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS, retries={"max_attempts": 2})
    try:
        result = collected(arguments[0], boto3, config)
    except ClientError as error:
        detail = error.response.get("Error", {})
        result = {"error": f"AWS refused {error.operation_name}: {detail.get('Message', error)}"}
    except BotoCoreError as error:
        result = {"error": f"AWS cannot be read: {error}"}
    sys.stdout.write(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
