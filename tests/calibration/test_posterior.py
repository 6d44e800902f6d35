"""Laws of the update."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.costs.learned import update

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


@given(ERRORS, st.booleans())
def test_infinite_noise_teaches_nothing(error: float, censored: bool) -> None:
    posterior = update(_prior(1, 0), np.array([error]), np.array([np.inf]), np.array([censored]))
    assert posterior.mean(_prior(1, 0)) == 0
    assert posterior.reduction(_prior(1, 0)) == 0


@given(ERRORS, NOISES)
def test_the_mean_is_between_prior_and_measurement(error: float, noise: float) -> None:
    mean = update(_prior(1, 0), np.array([error]), np.array([noise**2]), np.array([False])).mean(_prior(1, 0))[0]
    assert min(0, error) <= mean <= max(0, error)


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
    posterior = update(prior, np.array([limit]), np.array([noise**2]), np.array([True]))
    assert posterior.mean(prior)[0] >= -1e-12
    assert 0 <= posterior.reduction(prior)[0] < 1
    if limit > 1:
        assert posterior.mean(prior)[0] > limit - 3 * noise


def test_a_far_lower_limit_has_no_overflow() -> None:
    posterior = update(np.array([[1.0]]), np.array([60.0]), np.array([0.01]), np.array([True]))
    assert 50 < posterior.mean(np.array([[1.0]]))[0] < 61
