"""The posterior of measured runs, and figures that no hardware reaches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.costs.learned import update
from smp_advisor.errors import CalibrationError

ERRORS = st.floats(-1.5, 1.5)
NOISES = st.floats(0.02, 0.5)
CORRELATION = st.floats(0.0, 0.95)


def _prior(n: int, correlation: float, spread: float = 0.3) -> np.ndarray:
    return spread**2 * (correlation * np.ones((n, n)) + (1 - correlation) * np.eye(n))


@given(st.lists(st.tuples(ERRORS, NOISES), min_size=1, max_size=5), CORRELATION)
def test_it_is_the_conditional_normal_distribution(runs: list[tuple[float, float]], correlation: float) -> None:
    n = len(runs)
    prior, measured = _prior(n, correlation), np.array([error for error, _ in runs])
    variance = np.array([noise**2 for _, noise in runs])
    posterior = update(prior, measured, variance, np.zeros(n, dtype=bool))
    expected = np.linalg.solve(prior + np.diag(variance), measured)
    assert posterior.mean(prior) == pytest.approx(prior @ expected, abs=1e-9)
    left = prior - prior @ np.linalg.solve(prior + np.diag(variance), prior)
    assert np.diag(prior) - posterior.reduction(prior) == pytest.approx(np.diag(left), abs=1e-9)


@given(st.lists(st.tuples(ERRORS, NOISES, st.booleans()), min_size=2, max_size=5), CORRELATION, st.randoms())
def test_the_order_of_runs_has_no_effect(runs, correlation, random) -> None:  # type: ignore[no-untyped-def]
    def mean(of):  # type: ignore[no-untyped-def]
        errors, noises, censored = (np.array(column) for column in zip(*of, strict=True))
        posterior = update(_prior(len(of), correlation), errors, noises**2, censored.astype(bool))
        cross = np.full((1, len(of)), correlation * 0.09)
        return posterior.mean(cross)[0], posterior.reduction(cross)[0]

    shuffled = list(runs)
    random.shuffle(shuffled)
    assert mean(shuffled) == pytest.approx(mean(runs), abs=1e-7)


@given(st.floats(-3, 3), st.floats(0.05, 0.5))
def test_a_lower_limit_only_moves_the_mean_up(limit: float, noise: float) -> None:
    prior = np.array([[1.0]])
    for censored in (True, False):
        nothing = update(prior, np.array([limit]), np.array([np.inf]), np.array([censored]))
        assert (nothing.mean(prior), nothing.reduction(prior)) == (0, 0)
    posterior = update(prior, np.array([limit]), np.array([noise**2]), np.array([True]))
    assert posterior.mean(prior)[0] >= -1e-12
    assert 0 <= posterior.reduction(prior)[0] < 1
    if limit > 1:
        assert posterior.mean(prior)[0] > limit - 3 * noise


def test_a_far_lower_limit_has_no_overflow() -> None:
    posterior = update(np.array([[1.0]]), np.array([60.0]), np.array([0.01]), np.array([True]))
    assert 50 < posterior.mean(np.array([[1.0]]))[0] < 61


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


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0, 20.0])
def test_what_is_only_unlikely_is_learned_when_it_is_accepted(advice, factor):
    seconds, usual = advice.estimate.step_seconds * factor, factor in (0.5, 2.0)
    if not usual:
        with pytest.raises(CalibrationError, match=r"times the estimate.*accept=True.*--accept|peak is"):
            advice.calibrate(step_seconds=seconds)
    if factor >= 0.5:
        assert advice.calibrate(step_seconds=seconds, accept=not usual).job.calibration.runs[0].step_seconds == seconds


def exported_log(seconds: float, tokens: float) -> str:
    line = f"loss 9.1 tokens_per_second {tokens / seconds:.1f} seconds_per_step {seconds:.4f} peak_allocated_gib 20.1"
    return "\n".join(f"step {step} {line}" for step in range(10, 60, 10))


def rows(seconds: float, unit: str, work: float) -> list[dict[str, float]]:
    return [{"step": step, "step_seconds": seconds, unit: work / seconds} for step in range(1, 9)]


def trainer(seconds: float, samples: float) -> str:
    return f"{{'train_samples_per_second': {samples / seconds:.4f}, 'train_steps_per_second': {1 / seconds:.4f}}}"


@pytest.mark.parametrize(
    ("log", "work"),
    [
        (exported_log, 256 * 2048),
        (trainer, 256),
        (lambda seconds, work: rows(seconds, "samples_per_second", work), 256),
        (lambda seconds, work: rows(seconds, "tokens_per_second", work), 256 * 2048),
        (lambda seconds, work: rows(seconds, "tokens_per_second_per_gpu", work), 256 * 2048 / 16),
    ],
)
def test_a_rate_times_a_step_s_time_is_the_batch(advice, log, work):
    seconds = advice.estimate.step_seconds
    run = advice.calibrate(log(seconds, work)).job.calibration.runs[0]
    assert run.step_seconds == pytest.approx(seconds, rel=1e-3)
    assert not any("inferred" in note and "batch" in note for note in run.notes)
    with pytest.raises(CalibrationError, match=rf"[a-zGPU ]+ per step.* and the plan {work:,.0f}"):
        advice.calibrate(log(seconds, work / 2))
    if log is trainer:  # whose data may end in the middle of a batch
        assert advice.calibrate(trainer(seconds, 8), accept=True).learned is not None
