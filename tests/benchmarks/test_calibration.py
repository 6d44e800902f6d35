"""The calibration: what leaving rows or libraries out of the fit means."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy_rows import calibration
from benchmarks.accuracy_rows.judge import judge
from benchmarks.accuracy_rows.sites import Linear, fit
from benchmarks.accuracy_rows.spreads import Runs, kind_correlation, spread_table
from benchmarks.accuracy_rows.table import Table
from benchmarks.accuracy_rows.timed import Timed
from smp_advisor.costs.constants import constants, overriding
from tests.benchmarks.rows import TIMED, row

EFFICIENCY = "gpu.matmul_efficiency.A100"


def rows_of(library, speed, count=6):
    """Runs of a library whose matrix products are faster by a factor than the constants say."""
    known = constants()[EFFICIENCY].value
    made = []
    for number in range(count):
        one = row(TIMED, source=library, hidden=2048 + 512 * number, ffn=4 * (2048 + 512 * number))
        with overriding({EFFICIENCY: known * speed}):
            (found,) = judge([Table(None, "throughput", (one,))]).scored["step_time_a100_h100"]
        values = {**one.values, "step_time_s": str(found.predicted)}
        made += judge([Table(None, "throughput", (replace(one, values=values),))]).scored["step_time_a100_h100"]
    return made


def timed(*groups):
    return Timed([run for group in groups for run in group])


@pytest.fixture(scope="module")
def two_sources():
    return timed(rows_of("slow", 0.8), rows_of("fast", 1.25))


START = {EFFICIENCY: constants()[EFFICIENCY].value}


def test_a_fit_moves_towards_what_the_rows_of_many_sources_show():
    rows = timed(*(rows_of(f"source {number}", 1.25, count=2) for number in range(9)))
    before = Linear(rows, START)
    found = fit(rows, START, show=False)
    assert START[EFFICIENCY] < found.values[EFFICIENCY] < 1.26 * START[EFFICIENCY]
    assert np.abs(found.errors).max() < 0.3 * np.abs(before.errors).max()


def test_a_source_s_rows_do_not_judge_themselves(two_sources):
    point = Linear(two_sources, START)
    within = point.errors + point.jacobian @ point.solve(point.fitted).moves
    left = point.left_out()
    # Without its own rows a source is predicted by the other's speed.
    assert np.median(np.abs(left)) > np.median(np.abs(within))
    slow = two_sources.publications == "slow"
    assert (left[slow] < 0).all()
    assert (left[~slow] > 0).all()


def runs_of(errors, kinds, sources):
    same = np.full(len(errors), "same")
    return Runs(errors, same, same if kinds is None else kinds, sources)


def table_of(errors, sources):
    return spread_table(runs_of(errors, None, sources))["same"]


def test_a_source_with_one_error_for_all_runs_has_its_spread_between_sources():
    sources = np.repeat(["a", "b", "c", "d"], 5)
    errors = np.repeat([-0.3, 0.3, -0.2, 0.25], 5)
    entry = table_of(errors, sources)["any"]
    assert entry.run_spread < 0.5 * entry.source_spread
    assert entry.source_spread > 0.15


def test_kinds_of_plan_with_the_same_error_at_every_source_are_correlated():
    sites, kinds = np.repeat(["a", "b", "c", "d"], 4), np.tile(["x", "x", "y", "y"], 4)
    shared = np.repeat([-0.2, 0.1, 0.2, -0.1], 4)
    opposite = shared * np.where(kinds == "x", 1, -1)
    assert kind_correlation(runs_of(shared, kinds, sites), sites) == pytest.approx(1)
    assert kind_correlation(runs_of(opposite, kinds, sites), sites) == 0


def test_keeping_the_constants_writes_none(tmp_path, capsys):
    before = dict(constants())
    path = tmp_path / "t.csv"
    path.write_text(",".join(TIMED) + "\n" + "\n".join(",".join(TIMED.values()) for _ in range(2)) + "\n")
    assert calibration.main([str(path), "--keep"]) == 0
    assert "left out" in capsys.readouterr().out
    assert dict(constants()) == before
