"""Sentences come from the plan: each number of a report is a value of the recommendation, on every page the same."""

import pytest

from benchmarks.report_figures import faults_of


@pytest.mark.slow
def test_every_number_of_a_report_is_a_value_of_its_recommendation():
    reports = [faults_of(seed) for seed in range(30)]
    assert [fault for faults, _ in reports for fault in faults] == []
    assert sum(read for _, read in reports) > 3000
