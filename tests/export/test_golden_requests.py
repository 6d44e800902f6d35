"""Cells of every library send what correct jobs send, with the oldest and newest SDK of each major version."""

from __future__ import annotations

import pytest

from smp_advisor.export import estimator_cell
from tests.export.golden_jobs import JOBS, OPTIONS, differences
from tests.moto_harness.notebooks import ENVIRONMENTS, run_notebooks

pytestmark = [pytest.mark.moto, pytest.mark.slow]

SOURCE = "import os; os.makedirs('src', exist_ok=True)"
SCRIPT = "%%writefile src/train_smp.py\nprint('trains')\n"


def cell(name):
    case, sdk, added = JOBS[name]
    return estimator_cell(*case.parts, sdk=sdk, job_name=f"smp-advisor-{name[0]}", **OPTIONS | added)


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def results(request):
    """What the cells of an SDK sent."""
    environment = request.param
    names = [name for name, (_, sdk, _) in JOBS.items() if environment.startswith(sdk)]
    notebooks = {name: [SOURCE, SCRIPT, cell(name)] for name in names}
    return run_notebooks(notebooks, environment)


def test_requests_are_the_golden_ones(results):
    for name in JOBS.keys() & results.keys():
        assert results[name]["error"] is None, name
        (sent,) = results[name]["requests"]
        assert differences(sent, name) == [], name
        assert results[name]["files"] == {"train_smp.py": "print('trains')\n"}


def test_nothing_but_the_mock_was_reached(results):
    assert {host for result in results.values() for host in result["refused"]} == set()
