"""A chain of jobs, and accounts without a region or credentials: cells that run against a mock of AWS."""

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export import estimator_cell, monitoring_cell, quota_cell, script_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job
from tests.export.examples import P4D, TASKS
from tests.moto_harness.notebooks import run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow]

ENVIRONMENTS = ("v2-newest", "v3-newest")
LIBRARIES = {
    "smp-v1": (TASKS["gpt2"], Plan(tensor_parallel_degree=4, fp16=True, batch_size=4)),
    "fsdp": (TASKS["llama"], Plan(library="fsdp", batch_size=4)),
}
# What AWS answers about each job in turn: it ends while the cell waits.
ENDS = """
import time
import botocore.client

INTERRUPTED = {{("InProgress", "Interrupted"), ("Stopping", "Interrupted")}}
ends = iter({ends!r})
call, sleep, states = botocore.client.BaseClient._make_api_call, time.sleep, {{}}


def wait(seconds):
    sleep({pause})
    for name, state in states.items():
        if state[0] in ("InProgress", "Stopping"):
            states[name] = next(ends)
    if INTERRUPTED.intersection(states.values()):
        raise KeyboardInterrupt


def answer(client, operation, parameters):
    if operation == "ListTrainingJobs":  # the jobs of moto itself are complete at once
        status = parameters.pop("StatusEquals")
        result = call(client, operation, parameters)
        result["TrainingJobSummaries"] = [
            job for job in result["TrainingJobSummaries"] if states[job["TrainingJobName"]][0] == status
        ]
        return result
    result = call(client, operation, parameters)
    if operation == "DescribeTrainingJob":
        state = states.setdefault(parameters["TrainingJobName"], ("InProgress", "Training"))
        result |= dict(zip(("TrainingJobStatus", "SecondaryStatus"), state))
    return result


time.sleep, botocore.client.BaseClient._make_api_call = wait, answer
"""
BACK = "time.sleep, botocore.client.BaseClient._make_api_call = sleep, call"
PAUSE = {"v2": 0.01, "v3": 1.05}
"""Seconds between two jobs: version 3 of the SDK names them by the second."""
NEXT, DONE, OVER = ("Stopped", "MaxRuntimeExceeded"), ("Completed", "Completed"), ("Failed", "Failed")
INTERRUPTED = {"while it runs": ("InProgress", "Interrupted"), "while it stops": ("Stopping", "Interrupted")}
"""States of a job during which the user interrupts the cell that waits for it."""
NO_REGION = "import os; os.environ.pop('AWS_REGION'); os.environ.pop('AWS_DEFAULT_REGION')"
NO_CREDENTIALS = """
import os
for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
    os.environ.pop(name, None)
os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.environ["AWS_CONFIG_FILE"] = os.devnull
"""


def job(library, sdk, tokens=1e12, **options):
    model, plan = LIBRARIES[library]
    parts = (model, Cluster(P4D, 2), Job(sequence_length=32, precision=plan.precision, tokens=tokens), plan)
    return [script_cell(*parts), estimator_cell(*parts, sdk=sdk, data="s3://bucket/train", **options)]


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def results(request):
    notebooks, sdk = {}, request.param[:2]
    for library in LIBRARIES:
        notebooks[f"{library}: three jobs"] = [
            ENDS.format(pause=PAUSE[sdk], ends=[NEXT, NEXT, DONE]),
            *job(library, sdk),
            BACK,
        ]
    # The cell waits for a job, and names the next one, with the same code for each library.
    script, cell = job("fsdp", sdk)
    lines = "".join(f"    {line}\n" for line in cell.splitlines())
    guarded = f"try:\n{lines}except (RuntimeError, KeyboardInterrupt) as e: print(repr(e))"
    for when, state in INTERRUPTED.items():
        ends = ENDS.format(pause=PAUSE[sdk], ends=[state, NEXT, DONE])
        notebooks[f"interrupted {when}, then again"] = [ends, script, guarded, cell, BACK]
    notebooks["failure, then again"] = [ENDS.format(pause=PAUSE[sdk], ends=[OVER, DONE]), script, guarded, cell, BACK]
    notebooks["no region"] = [NO_REGION, *job("fsdp", sdk)]
    notebooks["no credentials"] = [NO_CREDENTIALS, *job("fsdp", sdk)]
    notebooks["no region, monitoring"] = [NO_REGION, "job_name = 'a'", monitoring_cell(Cluster(P4D, 2))]
    notebooks["no region, quota"] = [NO_REGION, quota_cell(Cluster(P4D, 2))]
    notebooks["no credentials, quota"] = [NO_CREDENTIALS, quota_cell(Cluster(P4D, 2))]
    return run_notebooks(notebooks, request.param)


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_job_resumes_where_the_one_before_stopped(results, library):
    result = results[f"{library}: three jobs"]
    assert result["error"] is None, result["error"]
    requests = result["requests"]
    assert len(requests) == 3
    assert len({request["TrainingJobName"] for request in requests}) == 3
    assert len({request["CheckpointConfig"]["S3Uri"] for request in requests}) == 1
    assert {request["StoppingCondition"]["MaxRuntimeInSeconds"] for request in requests} == {28 * 86_400}
    assert "The run is complete" in result["printed"]


def test_a_failed_job_is_resumed_by_running_the_cell_again(results):
    result = results["failure, then again"]
    assert result["error"] is None, result["error"]
    assert "Failed." in result["printed"]
    assert "Run this cell again to resume from the last checkpoint." in result["printed"]
    first, second = result["requests"]
    assert first["CheckpointConfig"] == second["CheckpointConfig"]
    assert "The run is complete" in result["printed"]


@pytest.mark.parametrize("when", INTERRUPTED)
def test_an_interrupted_cell_follows_its_job_when_it_runs_again(results, when):
    result = results[f"interrupted {when}, then again"]
    assert result["error"] is None, result["error"]
    assert "KeyboardInterrupt" in result["printed"]
    first, second = (request["TrainingJobName"] for request in result["requests"])
    # The cell shows the first job twice, and starts the second only after its end.
    started = [line.rpartition("/")[2] for line in result["printed"].splitlines() if line.startswith("Job ")]
    assert started == [first, first, second]
    assert "The run is complete" in result["printed"]


@pytest.mark.parametrize(
    ("lack", "cells", "sentence"),
    [
        ("no region", 3, "RuntimeError: No AWS region is set: set AWS_DEFAULT_REGION,"),
        ("no credentials", 2, "RuntimeError: No AWS credentials were found: run aws configure, or set AWS_PROFILE,"),
    ],
)
def test_what_the_account_lacks_is_one_sentence(results, lack, cells, sentence):
    found = [result for name, result in results.items() if name.startswith(lack)]
    assert len(found) == cells
    for result in found:
        assert result["requests"] == []
        error = result["error"].strip().splitlines()
        assert error[-1].startswith(sentence)
        assert not any("site-packages" in line for line in error)
    assert "or export the cell with region=." in results["no region"]["error"]
