"""Cells of every library send what correct jobs send, with the oldest and newest SDK of each major version."""

from __future__ import annotations

import pytest

from smp_advisor.export import estimator_cell
from tests.export.golden_jobs import JOBS, OPTIONS, differences
from tests.export.reading import replaced
from tests.moto_harness.notebooks import ENVIRONMENTS, run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow]

SOURCE = "import os; os.makedirs('src', exist_ok=True)"
SCRIPT = "%%writefile src/train_smp.py\nprint('trains')\n"


def cell(name):
    case, sdk, added = JOBS[name]
    return estimator_cell(*case.parts, sdk=sdk, job_name=f"smp-advisor-{name[0]}", **OPTIONS | added)


MUTATIONS = {
    "v2 SMP v2: other shard degree": ("b_v2_smpv2", replaced('"hybrid_shard_degree": 4', '"hybrid_shard_degree": 8')),
    "v2 SMP v2: degree as text": (
        "b_v2_smpv2",
        replaced('"tensor_parallel_degree": 2', '"tensor_parallel_degree": "2"'),
    ),
    "v2 SMP v2: no torchrun": (
        "b_v2_smpv2",
        replaced(
            '"torch_distributed": {\n            "enabled": True',
            '"torch_distributed": {\n            "enabled": False',
        ),
    ),
    "v2 SMP v2: other PyTorch": ("b_v2_smpv2", replaced('"2.4.1"', '"2.3.1"')),
    "v3 SMP v2: parameter dropped": ("c_v3_smpv2", replaced("random_seed=42,", "")),
    "v3 SMP v2: plain PyTorch": ("c_v3_smpv2", replaced('"smdistributed": {', '"other": {')),
    "v3 SMP v2: fewer instances": ("c_v3_smpv2", replaced("instance_count=2", "instance_count=1")),
    "v2 compiler: off": ("d_v2_trcomp", replaced("enabled=True", "enabled=False")),
    "v2 compiler: debugging": ("d_v2_trcomp", replaced("debug=False", "debug=True")),
    "v2 compiler: other transformers": (
        "d_v2_trcomp",
        replaced('"4.21.1",\n    pytorch_version="1.11.0"', '"4.17.0",\n    pytorch_version="1.10.2"'),
    ),
    "v3 SMP v1: no MPI": (
        "e1_v3_smpv1_toolkit",
        replaced('"sagemaker_mpi_enabled": True', '"sagemaker_mpi_enabled": False'),
    ),
    "v3 SMP v1: fewer processes": (
        "e1_v3_smpv1_toolkit",
        replaced('"sagemaker_mpi_num_of_processes_per_host": 8', '"sagemaker_mpi_num_of_processes_per_host": 4'),
    ),
    "v3 SMP v1: other program": (
        "e1_v3_smpv1_toolkit",
        replaced('"sagemaker_program": "train_smp.py"', '"sagemaker_program": "x.py"'),
    ),
    "v3 SMP v1: parameters dropped": ("e1_v3_smpv1_toolkit", replaced('"mp_parameters": {', '"parameters": {')),
    "v3 compiler: one GPU": (
        "f_v3_trcomp_toolkit",
        replaced('"sagemaker_pytorch_xla_multi_worker_enabled": True,', ""),
    ),
    "v3 compiler: other image": ("f_v3_trcomp_toolkit", replaced("compiler_config=True,", "")),
}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def results(request):
    """What the cells of an SDK sent; changed cells run with the newest only."""
    environment = request.param
    names = [name for name, (_, sdk, _) in JOBS.items() if environment.startswith(sdk)]
    notebooks = {name: [SOURCE, SCRIPT, cell(name)] for name in names}
    if environment.endswith("newest"):
        notebooks |= {
            changed: [SOURCE, SCRIPT, change(cell(name))]
            for changed, (name, change) in MUTATIONS.items()
            if name in names
        }
    return run_notebooks(notebooks, environment)


def test_requests_are_the_golden_ones(results):
    for name in JOBS.keys() & results.keys():
        assert results[name]["error"] is None, name
        (sent,) = results[name]["requests"]
        assert differences(sent, name) == [], name
        assert results[name]["files"] == {"train_smp.py": "print('trains')\n"}


def test_changed_cells_are_told_apart(results):
    """The comparison above can fail: each of these cells differs from its plan in one thing."""
    for changed in MUTATIONS.keys() & results.keys():
        result = results[changed]
        name, _ = MUTATIONS[changed]
        assert result["error"] or differences(result["requests"][0], name), changed


def test_nothing_but_the_mock_was_reached(results):
    assert {host for result in results.values() for host in result["refused"]} == set()
