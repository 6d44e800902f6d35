"""Log and metrics of a SageMaker training job, read from AWS in a child process (`cloudwatch`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.calibration.log import Log
    from smp_advisor.cluster.cluster import Cluster

__all__ = ["read_job"]

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
"""CreateTrainingJob, TrainingJobName."""
_SECONDS = 180
_MOST_BYTES = 64 * 2**20


def read_job(name: object, cluster: Cluster, read: Callable[[str], Log]) -> Log:
    """Log of a training job.

    Parameters
    ----------
    name
        Name of the job. Its log and metrics are read with the credentials and the region of boto3.
    cluster
        Cluster of the plan, which must be that of the job.
    read
        Reader of the log's text.

    Raises
    ------
    CalibrationError
        There is no such job, AWS refuses, or the job ran on another cluster.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CalibrationError(f"job_name must be the name of a training job (letters, digits, -), not {name!r:.80}.")
    job = _collected(name)
    error = job.get("error")
    if error:
        raise CalibrationError(f"The job {name} cannot be read. {' '.join(str(error).split()):.300}")
    if job["instance"] != [cluster.instance.name] or job["count"] != cluster.nodes:
        raise CalibrationError(
            f"The job {name} ran on {job['count']} x {', '.join(job['instance'])} and the plan is for "
            f"{cluster.nodes} x {cluster.instance.name}: pass the job's cluster=Cluster(...) and plan=."
        )
    log = read(str(job["log"]))
    notes = (*log.notes, f"SageMaker job {name}, status {job['status']}; its first host's log.")
    percent = job["gpu_memory_percent"]
    if percent and not log.peak_gib and not log.out_of_memory:
        instance = cluster.instance
        # CloudWatch adds up the GPUs of a host.
        peak = float(percent) / 100 / instance.gpus * instance.gpu_memory_gib
        notes += ("The peak is CloudWatch's, the mean of a host's GPUs, one value per minute: inferred.",)
        log = replace(log, peak_gib={"total": peak})
    if log.is_empty:
        raise CalibrationError(
            f"The log of the job {name} has no measured steps in a known format, and CloudWatch has no metrics of its "
            "GPUs."
        )
    return replace(log, notes=notes)


def _collected(name: str) -> dict[str, Any]:
    """Result of the child process."""
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    # -P: modules of the current folder are not imported.
    command = [sys.executable, "-P", "-m", "smp_advisor.calibration.cloudwatch", name]
    try:
        process = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"AWS did not answer within {_SECONDS} s."}
    try:
        result = json.loads(process.stdout[:_MOST_BYTES])
    except ValueError:
        result = {"error": process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or "no answer"}
    return result if isinstance(result, dict) else {}
