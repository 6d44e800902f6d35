"""Child process: reads a SageMaker training job from AWS and writes it to standard output as JSON.

usage: python -m smp_advisor.runs.cloudwatch JOB (attach | stop | STATE)

`attach` reads the request of the job; STATE, a JSON object, is that of a watch, whose poll sends at most
four requests. Except for `stop` (StopTrainingJob) it only reads (DescribeTrainingJob, ListTrainingJobs,
DescribeLogStreams, GetLogEvents, GetMetricData), with the credentials and the region of boto3's usual places. The
kernel that shows the advisor never imports boto3.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

_GROUP = "/aws/sagemaker/TrainingJobs"
_MOST_HOSTS = 16
_MOST_REQUESTS, _LOG_REQUESTS = 4, 2
"""Of a poll, and of those for its lines."""
_FULL_PAGE, _FULL_BYTES = 10_000, 900_000
"""Events or characters of a page of GetLogEvents after which there can be another one."""
_TIMEOUT_SECONDS = 10
_WINDOW = timedelta(minutes=10)
"""Of the metrics of a poll."""
_QUIET = 3
"""Polls without a line after which the log's stream is looked up again: a job that SageMaker restarted has another."""
_LIMITS = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded")
"""Ends of a job after which the exported cell of a longer run starts the next one."""
_NEXT_POLLS = 8
"""Polls that wait for it: about 12 minutes."""
_STAMP = re.compile(r"-(?:\d{4}(?:-\d\d){5}-\d{3}|\d{14}\w*)$")
"""Time at the end of a name by version 2 and version 3 of the SDK."""
_TRANSIENT = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "ServiceUnavailable", "InternalFailure")
_EXPIRED = ("ExpiredToken", "RequestExpired", "InvalidClientTokenId", "UnrecognizedClient", "SignatureDoesNotMatch")


def _queries(name: str, groups: list[dict[str, Any]], statistics: dict[str, str]) -> list[dict[str, Any]]:
    """Return a query for each metric of each of the first hosts."""
    hosts = min(sum(group["InstanceCount"] for group in groups), _MOST_HOSTS)
    return [
        {
            "Id": f"m{number}_{place}",
            "Label": f"{number} {metric}",
            "MetricStat": {
                "Metric": {
                    "Namespace": _GROUP,
                    "MetricName": metric,
                    "Dimensions": [{"Name": "Host", "Value": f"{name}/algo-{number}"}],
                },
                "Period": 60,
                "Stat": statistic,
            },
        }
        for number in range(1, hosts + 1)
        for place, (metric, statistic) in enumerate(statistics.items())
    ]


def _other_hosts(name: str, logs: Any, pending: list[str] | None, most: int) -> tuple[int, list[str], str]:
    """Requests, at most so many, streams that are left, and the last lines of other hosts of a job that failed."""
    requests, text = 0, ""
    if pending is None:
        requests += 1
        descriptions = logs.describe_log_streams(logGroupName=_GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
        streams = {entry["logStreamName"].rsplit("-", 1)[0]: entry["logStreamName"] for entry in descriptions}
        pending = [stream for host, stream in streams.items() if not host.endswith("/algo-1")][:_MOST_HOSTS]
    # The rest is read by the next poll: each one has a number of requests that it may make.
    while pending and requests < most:
        requests += 1
        page = logs.get_log_events(logGroupName=_GROUP, logStreamName=pending[0], startFromHead=False)
        body = "\n".join(event["message"] for event in page["events"])
        text += f"==> {pending[0].removeprefix(f'{name}/')} <==\n{body}\n"
        pending = pending[1:]
    return requests, pending, text


def _lines(name: str, state: dict[str, Any], logs: Any, *, failed: bool) -> dict[str, Any]:
    """New lines of the first host, and of the others once the job has failed, with at most two requests."""
    stream, token, pending = state.get("stream"), state.get("token"), state.get("others")
    requests, full, other_text, lines = 0, False, "", list[str]()
    try:
        if stream is None or state.get("quiet", 0) >= _QUIET:
            requests += 1
            first = logs.describe_log_streams(logGroupName=_GROUP, logStreamNamePrefix=f"{name}/algo-1-")
            newest = max((entry["logStreamName"] for entry in first["logStreams"]), default=stream)
            stream, token = newest, token if newest == stream else None
        while stream is not None and requests < _LOG_REQUESTS:
            requests += 1
            after = {"nextToken": token, "startFromHead": True} if token else {"startFromHead": False}
            page = logs.get_log_events(logGroupName=_GROUP, logStreamName=stream, **after)
            new, token = [event["message"] for event in page["events"]], page["nextForwardToken"]
            lines += new
            full = len(new) >= _FULL_PAGE or sum(map(len, new)) >= _FULL_BYTES
            if not full:
                break
        if failed and not full and requests < _LOG_REQUESTS:
            used, pending, other_text = _other_hosts(name, logs, pending, _LOG_REQUESTS - requests)
            requests += used
    except logs.exceptions.ResourceNotFoundException:
        stream, token, pending = None, None, []
    return {
        "requests": requests,
        "lines": lines,
        "full": full,
        "other_text": other_text,
        "stream": stream,
        "token": token,
        "others": pending,
    }


def polled(name: str, state: dict[str, Any], boto3: Any, config: Any) -> dict[str, Any]:
    """Status, new lines of the log, and the GPUs of each host, with at most four requests."""
    sagemaker = boto3.client("sagemaker", config=config)
    name = state.get("job", name)
    job = sagemaker.describe_training_job(TrainingJobName=name)
    groups = job["ResourceConfig"].get("InstanceGroups") or [job["ResourceConfig"]]
    failed = job["TrainingJobStatus"] == "Failed"
    log = _lines(name, state, boto3.client("logs", config=config), failed=failed)
    requests = 1 + log.pop("requests")
    hosts: dict[str, dict[str, float]] = {}
    transitions = [
        [entry["Status"], entry["StartTime"].timestamp(), entry["EndTime"].timestamp() if "EndTime" in entry else None]
        for entry in job.get("SecondaryStatusTransitions", [])
    ]
    status, following, waited = job["TrainingJobStatus"], "", state.get("waited", 0) + 1
    # A job that ended at its time limit goes on as the next one of its chain, once that is there.
    if status in ("Stopped", "Failed") and job.get("SecondaryStatus") in _LIMITS and _STAMP.search(name):
        requests += 1
        following = _next(name, job, sagemaker)
        if following or waited <= _NEXT_POLLS:
            end = job.get("TrainingEndTime", job["CreationTime"]).timestamp()
            status, transitions = "InProgress", [*transitions, ["WaitingForNextJob", end, None]]
    # The use of the GPUs costs a request of its own.
    elif state.get("metrics") and job.get("TrainingStartTime") and requests < _MOST_REQUESTS:
        requests += 1
        end = job.get("TrainingEndTime", datetime.now(UTC))
        result = boto3.client("cloudwatch", config=config).get_metric_data(
            MetricDataQueries=_queries(name, groups, {"GPUUtilization": "Average", "GPUMemoryUtilization": "Maximum"}),
            StartTime=max(end - _WINDOW, job["TrainingStartTime"] - timedelta(minutes=1)),
            EndTime=end + timedelta(minutes=1),
        )
        for series in result["MetricDataResults"]:
            number, _, metric = series["Label"].partition(" ")
            if values := series["Values"]:
                value = max(values) if metric == "GPUMemoryUtilization" else sum(values) / len(values)
                hosts.setdefault(f"algo-{number}", {})[metric] = value
    return {
        "instances": [group["InstanceType"] for group in groups],
        "count": sum(group["InstanceCount"] for group in groups),
        "status": status,
        "transitions": transitions,
        "failure": "" if status == "InProgress" else job.get("FailureReason", ""),
        "settings": {key: str(value).strip('"') for key, value in job.get("HyperParameters", {}).items()},
        "text": "\n".join(log["lines"]),
        "other_text": log["other_text"],
        "more": log["full"] or (failed and log["others"] != []),
        "hosts": hosts,
        "requests": requests,
        "state": {"job": following}
        if following
        else {
            "job": name,
            "waited": waited if status != job["TrainingJobStatus"] else 0,
            **{key: log[key] for key in ("stream", "token", "others")},
            "quiet": 0 if log["lines"] or log["stream"] != state.get("stream") else state.get("quiet", 0) + 1,
        },
    }


def _next(name: str, job: dict[str, Any], sagemaker: Any) -> str:
    """Return the first later job with the same name before its time; empty if there is none yet."""
    base = _STAMP.sub("", name)
    try:
        later = sagemaker.list_training_jobs(
            NameContains=base, CreationTimeAfter=job["CreationTime"], SortBy="CreationTime", SortOrder="Ascending"
        )["TrainingJobSummaries"]
    except Exception:  # noqa: BLE001 - listing jobs is a permission of its own: the run then ends with this job
        return ""
    names = (entry["TrainingJobName"] for entry in later)
    return next((job_name for job_name in names if job_name != name and _STAMP.sub("", job_name) == base), "")


def main(arguments: list[str]) -> int:
    """Print the job as one JSON object; with ``error``, a sentence, if it cannot be read."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    except ImportError:
        sys.stdout.write(json.dumps({"error": "boto3 is not installed here: run pip install boto3, or pass a log."}))
        return 0
    config = Config(connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS, retries={"max_attempts": 2})
    try:
        if arguments[1] == "attach":
            result = boto3.client("sagemaker", config=config).describe_training_job(TrainingJobName=arguments[0])
        elif arguments[1] == "stop":
            boto3.client("sagemaker", config=config).stop_training_job(TrainingJobName=arguments[0])
            result = {}
        else:
            result = polled(arguments[0], json.loads(arguments[1]), boto3, config)
    except ClientError as error:
        detail = error.response.get("Error", {})
        code = detail.get("Code", "")
        kinds = {"throttled": code.startswith(_TRANSIENT), "expired": code.startswith(_EXPIRED)}
        result = {
            "error": f"AWS refused {error.operation_name}: {detail.get('Message', error)}",
            "kind": next((kind for kind, applies in kinds.items() if applies), ""),
        }
    except NoCredentialsError as error:
        result = {"error": f"AWS cannot be read: {error}", "kind": "expired"}
    except BotoCoreError as error:
        result = {"error": f"AWS cannot be read: {error}", "kind": "throttled"}
    sys.stdout.write(json.dumps(result, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
