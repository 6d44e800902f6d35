"""What a calibration refuses: figures that no hardware reaches, and runs of another job."""

import pytest

from smp_advisor.errors import CalibrationError


def line(step, tokens, seconds):
    return f"step {step} loss 9.1 tokens_per_second {tokens} seconds_per_step {seconds} peak_allocated_gib 20.1"


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"step_seconds": 1e-3}, r"needs [\d,]+ TFLOP/s on each GPU, whose peak is 312"),
        ({"peak_gib": 200}, "has, 40 GiB"),
        ({"peak_gib": 41, "peak_kind": "total"}, "has, 40 GiB"),
    ],
)
def test_what_no_hardware_reaches_is_refused_with_its_figure(advice, figures, words, accept):
    with pytest.raises(CalibrationError, match=words):
        advice.calibrate(**figures, accept=accept)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_what_is_only_unlikely_is_learned_when_it_is_accepted(advice, factor):
    seconds = advice.estimate.step_seconds * factor
    if factor > 1:
        with pytest.raises(CalibrationError, match=r"10 times the estimate.*accept=True"):
            advice.calibrate(step_seconds=seconds)
        assert advice.calibrate(step_seconds=seconds, accept=True).job.calibration.runs[0].step_seconds == seconds
    else:
        with pytest.raises(CalibrationError):
            advice.calibrate(step_seconds=seconds)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_usual_error_of_the_estimate_needs_no_word(advice, factor):
    seconds = advice.estimate.step_seconds * factor
    assert advice.calibrate(step_seconds=seconds).job.calibration.runs[0].step_seconds == seconds


def test_a_rate_times_a_step_s_time_is_the_batch(advice):
    seconds = advice.estimate.step_seconds
    tokens = 256 * 2048
    log = "\n".join(line(step, f"{tokens / seconds:.1f}", f"{seconds:.4f}") for step in range(10, 60, 10))
    run = advice.calibrate(log).job.calibration.runs[0]
    assert run.step_seconds == pytest.approx(seconds, rel=1e-3)
    assert not any("inferred" in note and "batch" in note for note in run.notes)
    small = log.replace(f"tokens_per_second {tokens / seconds:.1f}", f"tokens_per_second {1024 / seconds:.1f}")
    with pytest.raises(CalibrationError, match=r"1,024 tokens per step.* and the plan 524,288"):
        advice.calibrate(small)


@pytest.mark.parametrize("unit", ["samples_per_second", "tokens_per_second"])
def test_records_with_a_rate_and_a_time_tell_their_batch(advice, unit):
    seconds = advice.estimate.step_seconds
    work = 256 * (2048 if unit == "tokens_per_second" else 1)
    rows = [{"step": step, "step_seconds": seconds, unit: work / seconds} for step in range(1, 9)]
    assert advice.calibrate(rows).job.calibration.runs[0].step_seconds == pytest.approx(seconds)
    with pytest.raises(CalibrationError, match=r"per step.* and the plan"):
        advice.calibrate([row | {unit: 2 * row[unit]} for row in rows])


def test_the_magic_says_how_to_accept_an_unlikely_figure(advice):
    with pytest.raises(CalibrationError, match="--accept"):
        advice.calibrate(step_seconds=advice.estimate.step_seconds * 20)
