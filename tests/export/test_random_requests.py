"""Random plans of every library with random options: each request is the one that was worked out apart.

`make explore` tries a thousand jobs, other runs some of them.
"""

import random
import re

import pytest
from hypothesis import settings

from smp_advisor.cluster import Cluster
from smp_advisor.errors import AdvisorError
from smp_advisor.export import estimator_cell
from smp_advisor.libraries import Plan
from smp_advisor.libraries.library import LIBRARIES
from smp_advisor.workload import Job
from tests.export.random_jobs import MODELS, RandomJob, differences, draw
from tests.export.reading import replaced
from tests.moto_harness.notebooks import run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow, pytest.mark.hypothesis]

EXPLORES = settings.get_current_profile_name() == "explore"
JOBS = 1000 if EXPLORES else 24
AT_ONCE = 25
SEED = 20_261_122
BUCKET = "import boto3; boto3.client('s3', region_name='us-east-1').create_bucket(Bucket='models')"


def notebook(drawn):
    """Cells of a job, and whether the script is generated; None if the exporter refuses the job in a sentence."""
    try:
        cell, generated = estimator_cell(*drawn.parts, sdk=drawn.sdk, **drawn.options), True
    except AdvisorError:
        try:
            cell, generated = estimator_cell(*drawn.parts, sdk=drawn.sdk, script="mine.py", **drawn.options), False
        except AdvisorError:
            return None
    name = re.search(r"train_[a-z0-9_-]+\.py", cell)[0] if generated else "mine.py"
    cell = cell.replace("START_ANYWAY = False", "START_ANYWAY = True")
    (line,) = re.findall(r"# Export: \w+", cell) or ["# of the user"]
    return [BUCKET, f"%%writefile {name}\n{line}\nprint()\n", cell], generated


def test_every_request_is_the_expected_one():
    chance, jobs, refused = random.Random(SEED), {}, 0
    while len(jobs) < JOBS:
        drawn = draw(chance)
        if (cells := notebook(drawn)) is None:
            refused += 1
            continue
        jobs[str(len(jobs))] = (drawn, *cells)
    assert refused < JOBS / 4
    assert {drawn.plan.library for drawn, *_ in jobs.values()} == set(LIBRARIES)
    wrong = {}
    for sdk in ("v2", "v3"):
        names = [name for name, (drawn, *_) in jobs.items() if drawn.sdk == sdk]
        assert len(names) > JOBS / 4
        for first in range(0, len(names), AT_ONCE):
            notebooks = {name: jobs[name][1] for name in names[first : first + AT_ONCE]}
            for name, result in run_notebooks(notebooks, f"{sdk}-newest").items():
                drawn, _, generated = jobs[name]
                if found := differences(drawn, result, generated=generated):
                    wrong[name] = (drawn.plan.library, sdk, drawn.options, found)
    assert not wrong, "\n".join(map(str, wrong.values()))


TENSOR = {"tensor_parallel_degree": 4, "shard_optimizer_state": True, "prescaled_batch": True, "fp16": True}
FIXED = RandomJob(
    model=MODELS["gpt2"],
    cluster=Cluster("ml.p4d.24xlarge", 16),
    job=Job(sequence_length=512),
    plan=Plan(**TENSOR, batch_size=4, activation_checkpointing="each"),
    sdk="v2",
    options={"job_name": "run", "data": "s3://data/tokens", "extra_hyperparameters": {"max_steps": 100}},
)
CHANGES = {
    "fewer instances": replaced("instance_count=16", "instance_count=8"),
    "dropped parameter": replaced('"shard_optimizer_state": True,', ""),
    "added parameter": replaced('"ddp": True,', '"ddp": True, "skip_tracing": True,'),
    "integer as float": replaced('"tensor_parallel_degree": 4', '"tensor_parallel_degree": 4.0'),
    "boolean as integer": replaced('"prescaled_batch": True', '"prescaled_batch": 1'),
    "fewer processes": replaced('"processes_per_host": 8', '"processes_per_host": 4'),
    "other framework": replaced('"1.13.1",\n    py_version="py39"', '"1.12.1",\n    py_version="py38"'),
    "other checkpointing": replaced('"activation_checkpointing": "each"', '"activation_checkpointing": "none"'),
    "other program": replaced('entry_point="train_', 'entry_point="requirements.txt" or "train_'),
    # The check of the channels before the start names the place, too.
    "other data": replaced('inputs = {\n    "train": "s3://data/tokens"', 'inputs = {\n    "train": "s3://data/test"'),
}


def test_a_changed_cell_does_not_pass_for_the_plan():
    """The comparison above can fail: each cell differs from the plan in one thing. A cell can run again."""
    (bucket, script, cell), generated = notebook(FIXED)
    notebooks = {name: [bucket, script, change(cell)] for name, change in CHANGES.items()}
    results = run_notebooks(notebooks | {"unchanged": [bucket, script, cell], "again": [bucket, script, cell, cell]})
    assert {name for name, result in results.items() if differences(FIXED, result, generated=generated)} == set(CHANGES)
    assert len(results["again"]["requests"]) == 2
    name = results["unchanged"]["requests"][0]["TrainingJobName"]
    console = "https://us-west-2.console.aws.amazon.com/sagemaker/home?region=us-west-2#/jobs/"
    assert f"Started {name}: {console}{name}" in results["unchanged"]["printed"]
    assert {host for result in results.values() for host in result["refused"]} == set()
