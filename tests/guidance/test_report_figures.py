"""Sentences come from the plan: each number of a report is a value of the recommendation, on every page the same."""

import pytest

from benchmarks.report_figures import faults_of
from tests.rows import rows


@pytest.mark.slow
@pytest.mark.parametrize("seeds", rows(["0 to 3", "4 to 29"], "4 to 29"))  # of random requests
def test_every_number_of_a_report_is_a_value_of_its_recommendation(seeds):
    first, last = map(int, seeds.split(" to "))
    reports = [faults_of(seed) for seed in range(first, last + 1)]
    assert [fault for faults, _ in reports for fault in faults] == []
    assert sum(read for _, read in reports) > 100 * len(reports)
