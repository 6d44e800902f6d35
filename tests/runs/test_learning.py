"""What a measured run changes in estimates, and what it leaves alone."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from smp_advisor.costs.evaluate import memory_columns, seconds_columns
from smp_advisor.errors import CalibrationError, JobError
from smp_advisor.libraries.layout import layout_of
from smp_advisor.runs.measure import measured_run
from smp_advisor.runs.readers import Log, Sample

if TYPE_CHECKING:
    from pathlib import Path

FACTORS = st.floats(0.4, 3.0)


def _calibration(advice: smpa.Advice, *factors: float, plan: smpa.Plan | None = None) -> smpa.Calibration:
    """Runs of the plan that took `factors` times the predicted step time."""
    seconds = smpa.estimate(advice.model, advice.cluster, advice.job, plan or advice.plan).step_seconds
    logs = [Log(title="your figures", samples=(Sample(None, factor * seconds),)) for factor in factors]
    runs = (
        measured_run(log, advice.model, advice.cluster, advice.job, plan or advice.plan, accept=True) for log in logs
    )
    return smpa.Calibration(runs=tuple(runs))


def _estimate(
    advice: smpa.Advice, calibration: smpa.Calibration | None, cluster: smpa.Cluster | None = None
) -> smpa.Estimate:
    job = replace(advice.job, calibration=calibration, global_batch_size=None)
    return smpa.estimate(advice.model, cluster or advice.cluster, job, advice.plan)


def _log_width(estimate: smpa.Estimate) -> float:
    low, high = estimate.step_factors
    return math.log(high / low)


@given(FACTORS)
def test_the_step_time_is_between_prediction_and_measurement(advice: smpa.Advice, factor: float) -> None:
    before, after = advice.estimate, _estimate(advice, _calibration(advice, factor))
    measured = factor * before.step_seconds
    low, high = sorted((before.step_seconds, measured))
    assert low * (1 - 1e-6) <= after.step_seconds <= high * (1 + 1e-6)
    assert after.step_seconds == pytest.approx(measured, rel=0.06)
    assert after.step_seconds_range[0] < measured < after.step_seconds_range[1]
    assert _log_width(after) < 0.5 * _log_width(before)
    assert after.needed_gib == before.needed_gib


@pytest.mark.slow
@given(st.lists(FACTORS, min_size=2, max_size=4))
def test_more_runs_never_widen(advice: smpa.Advice, factors: list[float]) -> None:
    every = _estimate(advice, _calibration(advice, *factors))
    assert _log_width(every) <= _log_width(_estimate(advice, _calibration(advice, *factors[:-1]))) + 1e-12


def test_distance_widens_the_interval_again(advice: smpa.Advice) -> None:
    calibration = _calibration(advice, 1.5)
    widths = []
    for cluster in (
        advice.cluster,
        smpa.Cluster("ml.p4d.24xlarge", 4),
        smpa.Cluster("ml.p4de.24xlarge", 4),
        smpa.Cluster("ml.p5.48xlarge", 4),
    ):
        before, after = (_estimate(advice, c, cluster=cluster) for c in (None, calibration))
        assert after.step_seconds > before.step_seconds
        widths.append(_log_width(after) / _log_width(before))
    assert widths == sorted(widths)
    assert widths[-1] < 1


def test_a_plan_is_not_preferred_because_nobody_measured_it(advice: smpa.Advice) -> None:
    job = replace(advice.job, calibration=_calibration(advice, 1.5), global_batch_size=None)
    plain = replace(job, calibration=None)
    plans = [replace(advice.plan, batch_size=2 * advice.plan.batch_size), advice.plan]
    other, measured = (
        smpa.estimate(advice.model, advice.cluster, job, plan).step_seconds
        / smpa.estimate(advice.model, advice.cluster, plain, plan).step_seconds
        for plan in plans
    )
    assert other == pytest.approx(measured, rel=0.05)


def test_a_measured_peak_moves_memory_and_a_lower_one_the_other_way(advice: smpa.Advice) -> None:
    before = advice.estimate
    for change in (-1.5, 1.5):
        peak = before.memory.peak.total_gib + before.memory.peak.cached_gib + change
        after = advice.calibrate(peak_gib=peak, peak_kind="total", plan=advice.plan).job.calibration
        estimate = _estimate(advice, after)
        assert (estimate.needed_gib - before.needed_gib) * change > 0
        assert estimate.memory_error_gib < before.memory_error_gib
        assert estimate.headroom_gib == pytest.approx(estimate.usable_gpu_memory_gib - estimate.needed_gib)
        assert estimate.step_seconds == before.step_seconds


def test_running_out_of_memory_makes_the_same_plan_improbable(advice: smpa.Advice) -> None:
    assert advice.estimate.fit_probability > 0.95
    calibrated = advice.calibrate(out_of_memory=True)
    assert _estimate(advice, calibrated.job.calibration).fit_probability < 0.5
    assert calibrated.plan != advice.plan
    assert calibrated.estimate.fit_probability >= 0.95


def test_columns_have_the_figures_of_single_estimates(advice: smpa.Advice) -> None:
    calibration = advice.calibrate(step_seconds=2.0).calibrate(peak_gib=30, peak_kind="reserved").job.calibration
    job = replace(advice.job, calibration=calibration, global_batch_size=None)
    plans = [replace(advice.plan, batch_size=size) for size in (1, 2, 4)]
    layout = layout_of(plans, job, advice.cluster)
    seconds = sum(seconds_columns(advice.model, advice.cluster, job, layout).values())
    memory = memory_columns(advice.model, advice.cluster, job, layout)
    for row, plan in enumerate(plans):
        estimate = smpa.estimate(advice.model, advice.cluster, job, plan)
        assert seconds[row] == pytest.approx(estimate.step_seconds)
        assert memory.needed_bytes[row] / 2**30 == pytest.approx(estimate.needed_gib)


def test_a_calibration_is_saved_and_reused(advice: smpa.Advice, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    calibrated = advice.calibrate(step_seconds=3.0).calibrate(out_of_memory=True)
    assert calibrated.job.calibration is not None
    calibrated.job.calibration.save(path)
    assert smpa.load_calibration(path) == calibrated.job.calibration
    assert [entry.name for entry in tmp_path.iterdir()] == ["calibration.json"]
    other = smpa.advise(
        "2B",
        "ml.p4d.24xlarge",
        instance_count=4,
        library="fsdp",
        precision="bf16",
        global_batch_size=256,
        calibration=path,
    )
    assert other.job.calibration == calibrated.job.calibration
    assert other.learned is not None
    assert "times the parameters" in str(other.learned)
    assert pickle.loads(pickle.dumps(other)).recommended == other.recommended
    assert repr(other.job.calibration) == "Calibration(2 runs)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "smp-advisor-calibration", "version": 2, "runs": []}',
        '{"format": "smp-advisor-calibration", "version": 1, "runs": []}',
        '{"format": "smp-advisor-calibration", "version": 1, "runs": [{}]}',
        '{"format": "smp-advisor-calibration", "version": 1, "runs": [{"conditions": {"gpu": 1}}]}',
        "[" * 100_000,
    ],
)
def test_no_calibration_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text, "utf-8")
    with pytest.raises(CalibrationError) as caught:
        smpa.load_calibration(path)
    assert str(caught.value).count("\n") == 0


def test_a_saved_run_with_impossible_values_is_refused(advice: smpa.Advice, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    _calibration(advice, 1.2).save(path)
    text = path.read_text("utf-8")
    for good, bad in (('"step_noise": 0.', '"step_noise": -0.'), ('"nodes": 2', '"nodes": "2"'), ("null", "[]")):
        assert good in text
        path.write_text(text.replace(good, bad, 1), "utf-8")
        with pytest.raises(CalibrationError):
            smpa.load_calibration(path)


def test_figures_are_checked(advice: smpa.Advice) -> None:
    for wrong in (
        {},
        {"step_seconds": -1},
        {"step_seconds": True},
        {"peak_gib": "30"},
        {"peak_gib": 30, "peak_kind": "used"},
        {"peak_gib": 30, "out_of_memory": True},
        {"run": "a\nb"},
        {"run": 3},
        {"run": "missing.log"},
        {"run": "missing.log", "step_seconds": 2},
    ):
        with pytest.raises(CalibrationError):
            advice.calibrate(**wrong)  # type: ignore[arg-type]
    with pytest.raises(JobError):
        smpa.Job(calibration="calibration.json")  # type: ignore[arg-type]
