"""The scripts that the advisor itself writes have no findings, with their plans and without."""

from __future__ import annotations

import pytest

from smp_advisor.export import training_script
from smp_advisor.scripts import check_script
from tests.export.examples import CASES, TASK_CASES

CELLS = CASES | TASK_CASES


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("known", [True, False], ids=["plan", "no plan"])
def test_an_exported_script_has_no_findings(name, known):
    case = CELLS[name]
    report = check_script(training_script(*case.parts), case.plan if known else None)
    assert not report, str(report)
