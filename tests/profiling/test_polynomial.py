"""Polynomials in batch and sequence go through their points and hold between and beyond them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.profiling.polynomial import Polynomial
from tests.deferred import Deferred

choose_samples = Deferred("smp_advisor.profiling.traced_steps", "choose_samples")
integers = st.integers(-(10**12), 10**12)
tables = st.lists(st.lists(integers, min_size=3, max_size=3), min_size=2, max_size=2)


def value(table, batch, sequence):
    return sum(table[i][j] * batch**i * sequence**j for i in range(2) for j in range(3))


@given(tables, st.integers(1, 64), st.integers(1, 10**5))
def test_a_fit_holds_at_sizes_that_were_not_fitted(table, batch, sequence):
    fitted = Polynomial.fit({(b, s): value(table, b, s) for b in (2, 3) for s in (64, 128, 256)})
    assert fitted(batch, sequence) == value(table, batch, sequence)
    assert Polynomial.from_list(fitted.as_list()) == fitted


@given(tables, tables, st.integers(-9, 9))
def test_sums_and_multiples(left, right, factor):
    first, second = (Polynomial(tuple(tuple(map(Fraction, row)) for row in table)) for table in (left, right))
    assert (first + second * factor)(5, 77) == value(left, 5, 77) + factor * value(right, 5, 77)
    assert (first - first)(5, 77) == 0


def test_an_incomplete_grid_is_refused():
    with pytest.raises(ValueError, match="every combination"):
        Polynomial.fit({(1, 1): 1, (2, 2): 2})


@pytest.mark.torch
@given(st.integers(1, 200_000), st.sampled_from([0, 8, 64, 512, 1024, 131_072]), st.sampled_from([0, 128, 4096]))
def test_samples_lie_within_the_models_positions_on_one_side_of_a_window(sequence, longest, window):
    samples = choose_samples(sequence, has_sequence=True, longest=longest, window=window)
    assert len(set(samples.sequences)) == 3
    assert min(samples.sequences) >= 1
    if longest:
        assert max(samples.sequences) <= longest
    if window and samples.sequence > window and not longest:
        assert min(samples.sequences) > window
