"""Numbers and columns of numbers have the same results."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.core import elementwise

VALUES, POSITIVE = st.floats(-1e12, 1e12), st.floats(1e-12, 1e12) | st.just(0.0)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[st.SearchStrategy, ...]]] = {
    **{name: (getattr(elementwise, name), (POSITIVE, POSITIVE)) for name in ("maximum", "minimum", "quotient")},
    **{name: (getattr(elementwise, name), (POSITIVE,)) for name in ("ceil", "root")},
    "where": (elementwise.where, (st.booleans(), VALUES, VALUES)),
    "inverted": (elementwise.inverted, (st.booleans(),)),
    "largest": (lambda *values: elementwise.largest(values), (VALUES, VALUES, VALUES)),
    "smallest": (lambda *values: elementwise.smallest(values), (VALUES, VALUES, VALUES)),
    "choose": (lambda *values: elementwise.choose(elementwise.largest_index(values), values), (VALUES, VALUES)),
    "interpolated": (lambda x: elementwise.interpolated(x, (2, 4, 8), (0.3, 0.9, 0.5)), (st.floats(-10, 100),)),
    "common_divisor": (elementwise.common_divisor, (st.integers(1, 10**6), st.integers(1, 10**6))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(st.data())
def test_functions_of_numbers_are_those_of_columns(name: str, data: st.DataObject) -> None:
    function, kinds = FUNCTIONS[name]
    rows = data.draw(st.lists(st.tuples(*kinds), min_size=1, max_size=8))
    columns = [np.array(values) for values in zip(*rows, strict=True)]
    np.testing.assert_allclose(function(*columns), [function(*row) for row in rows], rtol=1e-12)
