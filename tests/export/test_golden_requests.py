"""Cells of every library send what correct jobs send, with the oldest and newest SDK of each major version."""

import json
import re
from pathlib import Path

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export import estimator_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload.job import Job
from tests.export.examples import P4D, make_model
from tests.export.reading import typed
from tests.moto_harness.notebooks import ENVIRONMENTS, run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow]

_GOLDEN = Path(__file__).parent / "golden"


def _job(plan, *, instance=P4D, nodes=2, family="gpt2"):
    return make_model(family=family), Cluster(instance, nodes), Job(sequence_length=64), plan


ONE_P3DN = {"instance": "ml.p3dn.24xlarge", "nodes": 1}
SMP_V1 = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 4, "microbatches": 4, "batch_size": 4, "fp16": True}
SMP_V2 = Plan(
    library="smp-v2",
    version="2.7.0",
    hybrid_shard_degree=4,
    tensor_parallel_degree=2,
    sm_activation_offloading=True,
    activation_loading_horizon=2,
    random_seed=42,
    offload_activations=True,
    activation_checkpointing="each",
)
COMPILER = Plan(library="training-compiler", version="1.11.0", batch_size=24)

JOBS = {
    # Name of the golden request: the plan, the SDK, and what its user added.
    "a_v2_smpv1": (
        _job(Plan(**SMP_V1, active_microbatches=2, shard_optimizer_state=True, prescaled_batch=True)),
        "v2",
        {"extra_hyperparameters": {"epochs": 1, "lr": 0.0005, "bf16": False, "note": "hello world"}, "volume_gb": 30},
    ),
    "b_v2_smpv2": (_job(SMP_V2, family="llama"), "v2", {"volume_gb": 30}),
    "c_v3_smpv2": (_job(SMP_V2, family="llama"), "v3", {"volume_gb": 500}),
    "d_v2_trcomp": (
        _job(COMPILER, **ONE_P3DN),
        "v2",
        {"extra_hyperparameters": {"epochs": 1, "lr": 0.0005, "per_device_train_batch_size": 24}, "volume_gb": 30},
    ),
    "e1_v3_smpv1_toolkit": (_job(Plan(**SMP_V1)), "v3", {"volume_gb": 500}),
    "f_v3_trcomp_toolkit": (
        *(_job(COMPILER, **ONE_P3DN), "v3"),
        {"extra_hyperparameters": {"epochs": 1}, "volume_gb": 30},
    ),
}

OPTIONS = {
    "script": "train_smp.py",
    "source_dir": "src",
    "data": "s3://my-bucket/train",
    "max_run_seconds": 3600,
    "plan_hyperparameters": False,
    "extra_hyperparameters": {"epochs": 1, "lr": 0.0005},
}

LIBRARY_DEFAULTS = {
    # What SMP v1 takes a parameter for that is not sent.
    "auto_partition": True,
    "optimize": "speed",
    "pipeline": "interleaved",
    "placement_strategy": "cluster",
    "shard_optimizer_state": False,
    "prescaled_batch": False,
}


def differences(sent, name):
    """Where a sent request is not the golden one, names and times apart."""
    expected, sent_leaves = _comparable(json.loads((_GOLDEN / f"{name}.json").read_text())), _comparable(sent)
    return [
        f"{key}: {sent_leaves.get(key)!r} instead of {expected.get(key)!r}"
        for key in sorted(expected.keys() | sent_leaves.keys())
        if typed(expected.get(key)) != typed(sent_leaves.get(key))
    ]


def _comparable(request):
    """Every leaf of a request by its path, with the job's name and the time left out."""
    text = json.dumps(request).replace(request["TrainingJobName"], "JOB")
    request = json.loads(re.sub(r"/20[0-9]{12}/", "/", text))
    hyperparameters = request.pop("HyperParameters")
    parameters = json.loads(hyperparameters.pop("mp_parameters", "{}"))
    if "pipeline_parallel_degree" in parameters:
        parameters = LIBRARY_DEFAULTS | parameters
    leaves = {f"HyperParameters.{key}": value for key, value in hyperparameters.items()}
    leaves |= {f"mp_parameters.{key}": value for key, value in parameters.items()}
    return leaves | dict(_leaves(request, ""))


def _leaves(value, path):
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{path}.{key}")
    elif isinstance(value, list):
        for place, entry in enumerate(value):
            yield from _leaves(entry, f"{path}[{place}]")
    else:
        yield path, value


SOURCE = "import os; os.makedirs('src', exist_ok=True)"
SCRIPT = "%%writefile src/train_smp.py\nprint('trains')\n"


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def results(request):
    """What the cells of an SDK sent."""
    notebooks = {}
    for name, (parts, sdk, added) in JOBS.items():
        if request.param.startswith(sdk):
            cell = estimator_cell(*parts, sdk=sdk, job_name=f"smp-advisor-{name[0]}", **OPTIONS | added)
            notebooks[name] = [SOURCE, SCRIPT, cell]
    return run_notebooks(notebooks, request.param)


def test_requests_are_the_golden_ones(results):
    for name in JOBS.keys() & results.keys():
        assert results[name]["error"] is None, name
        (sent,) = results[name]["requests"]
        assert differences(sent, name) == [], name
        assert results[name]["files"] == {"train_smp.py": "print('trains')\n"}
        assert not results[name]["refused"], "only the mock was reached"
