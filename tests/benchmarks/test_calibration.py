"""The calibration: what leaving rows or libraries out of the fit means."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy_rows import calibration
from benchmarks.accuracy_rows.judge import judge
from benchmarks.accuracy_rows.table import Table
from smp_advisor.costs.constants import constants, overriding
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.intervals import step_time_factors
from tests.benchmarks.rows import TIMED, row, table
from tests.costs.shapes import row_30b

EFFICIENCY = "gpu.matmul_efficiency.A100"


def rows_of(library, speed, count=6):
    """Runs of a library whose matrix products are faster by a factor than the constants say."""
    known = constants()[EFFICIENCY].value
    made = []
    for number in range(count):
        one = row(TIMED, framework=library, hidden=2048 + 512 * number, ffn=4 * (2048 + 512 * number))
        with overriding({EFFICIENCY: known * speed}):
            (found,) = judge([Table(None, "throughput", (one,))]).scored["step_time_a100_h100"]
        values = {**one.values, "step_time_s": str(found.predicted)}
        made += judge([Table(None, "throughput", (replace(one, values=values),))]).scored["step_time_a100_h100"]
    return made


@pytest.fixture(scope="module")
def two_libraries():
    return calibration.Fit({"step_time_a100_h100": [*rows_of("slow", 0.8), *rows_of("fast", 1.25)]})


def test_a_fit_finds_what_rows_of_one_library_say():
    rows = calibration.Fit({"step_time_a100_h100": rows_of("fast", 1.25)})
    start = {EFFICIENCY: constants()[EFFICIENCY].value}
    found = calibration.fit(rows, start)
    assert found[EFFICIENCY] == pytest.approx(1.25 * start[EFFICIENCY], rel=0.02)
    assert rows.loss(found) < rows.loss(start)


def test_a_library_s_rows_do_not_judge_themselves(two_libraries):
    values = {EFFICIENCY: constants()[EFFICIENCY].value}
    by_tens = calibration.left_out_errors(two_libraries, values)
    elsewhere = calibration.errors_elsewhere(two_libraries, values)
    # Without its own rows a library is predicted by the other's speed, with some of them by what lies between.
    assert np.median(np.abs(elsewhere)) > 1.3 * np.median(np.abs(by_tens))
    slow = np.array([one.row.text("framework") == "slow" for _, one in two_libraries.rows])
    assert (elsewhere[slow] < 0).all()
    assert (elsewhere[~slow] > 0).all()


def test_keeping_the_constants_writes_none(tmp_path, capsys):
    before = dict(constants())
    path = tmp_path / "t.csv"
    path.write_text(",".join(TIMED) + "\n" + "\n".join(",".join(TIMED.values()) for _ in range(2)) + "\n")
    assert calibration.main([str(path), "--keep"]) == 0
    assert "elsewhere" in capsys.readouterr().out
    assert dict(constants()) == before


def test_the_quick_report_lists_every_run_of_users_code_and_pools_none_of_them(tmp_path, capsys):
    paths = []
    for folder, source, count in (("dev", "A (table 1)", 3), ("aws", "B", 2)):
        (tmp_path / folder).mkdir()
        rows = [TIMED | {"source": source, "id": f"{folder}-{number}"} for number in range(count)]
        paths.append(str(table(tmp_path / folder, "t.csv", rows)))
    assert calibration.main([*paths, "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.strip().startswith("aws-")] == ["aws-0", "aws-1"]
    (residual,) = [line for line in lines if line.startswith("fit residual")]
    assert residual.split()[2] == "3"


@pytest.mark.parametrize(
    "kind", ["pipeline, nodes", "sharded, one node", "tensor, one node", "replicated, nodes", "no such"]
)
def test_a_user_s_interval_is_no_narrower_than_that_of_published_libraries(kind):
    low, high = step_time_factors(kind)
    published = step_time_factors(kind, published_library=True)
    assert low <= published[0] < 1 < published[1] <= high


def test_estimates_show_the_interval_of_a_library_that_was_not_fitted():
    model, cluster, job, plan = row_30b()
    assert estimate(model, cluster, job, plan).step_factors == step_time_factors("tensor, nodes")
