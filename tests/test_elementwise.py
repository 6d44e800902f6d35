"""Numbers and columns of numbers have the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import elementwise

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = st.floats(-1e12, 1e12)
POSITIVE = st.floats(1e-12, 1e12) | st.just(0.0)


@pytest.mark.parametrize("function", [elementwise.maximum, elementwise.minimum, elementwise.quotient])
@given(pairs=st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=8))
def test_functions_of_two_are_those_of_columns(
    function: Callable[[object, object], object], pairs: list[tuple[float, float]]
) -> None:
    first, second = np.array(pairs).T
    np.testing.assert_array_equal(function(first, second), [function(a, b) for a, b in pairs])
    np.testing.assert_array_equal(function(first, pairs[0][1]), [function(a, pairs[0][1]) for a, _ in pairs])


@pytest.mark.parametrize("function", [elementwise.ceil, elementwise.root])
@given(values=st.lists(POSITIVE, min_size=1, max_size=8))
def test_functions_of_one_are_those_of_columns(function: Callable[[object], object], values: list[float]) -> None:
    np.testing.assert_array_equal(function(np.array(values)), [function(value) for value in values])


@given(st.lists(st.tuples(st.booleans(), VALUES, VALUES), min_size=1, max_size=8))
def test_conditions_are_those_of_columns(rows: list[tuple[bool, float, float]]) -> None:
    conditions = np.array([row[0] for row in rows])
    yes, no = (np.array([row[i] for row in rows]) for i in (1, 2))
    np.testing.assert_array_equal(elementwise.where(conditions, yes, no), [elementwise.where(*row) for row in rows])
    np.testing.assert_array_equal(elementwise.inverted(conditions), [elementwise.inverted(row[0]) for row in rows])
    assert elementwise.anywhere(conditions) == any(elementwise.anywhere(row[0]) for row in rows)


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=8))
def test_the_choice_of_the_largest_is_that_of_columns(rows: list[tuple[float, float, float]]) -> None:
    columns = [*np.array(rows).T]
    np.testing.assert_array_equal(elementwise.largest(columns), [elementwise.largest(row) for row in rows])
    np.testing.assert_array_equal(elementwise.smallest(columns), [elementwise.smallest(row) for row in rows])
    index = elementwise.largest_index(columns)
    np.testing.assert_array_equal(index, [elementwise.largest_index(row) for row in rows])
    np.testing.assert_array_equal(elementwise.choose(index, columns), elementwise.largest(columns))


@given(st.lists(st.floats(-10, 100), min_size=1, max_size=8))
def test_interpolation_is_that_of_columns(values: list[float]) -> None:
    points, heights = (2, 4, 8), (0.3, 0.9, 0.5)
    alone = [elementwise.interpolated(value, points, heights) for value in values]
    np.testing.assert_allclose(elementwise.interpolated(np.array(values), points, heights), alone, rtol=1e-12)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=8))
def test_common_divisors_are_those_of_columns(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs, dtype=np.float64).T
    np.testing.assert_array_equal(
        elementwise.common_divisor(first, second), [elementwise.common_divisor(a, b) for a, b in pairs]
    )
