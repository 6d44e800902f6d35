"""Arithmetic that serves numbers and columns of numbers alike.

A formula written with these functions and with operators computes one plan from Python numbers and many plans from
arrays of shape (n,). With d draws of the cost model's constants, arrays have the shape (d, n). NumPy takes a
microsecond for an operation on an array of one element; a number takes a tenth. Columns with one value for all plans
stay numbers, so that only the terms that differ between plans are arrays.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    Bools = bool | NDArray[np.bool_]
    Ints = int | NDArray[np.int64]
    Floats = float | NDArray[np.floating[Any]] | NDArray[np.int64]


def where(condition: Bools, yes: Floats, no: Floats) -> Floats:
    """`yes` where the condition is true, else `no`."""
    if type(condition) is ndarray:
        return np.where(condition, yes, no)
    return yes if condition else no


def maximum(first: Floats, second: Floats) -> Floats:
    if type(first) is ndarray or type(second) is ndarray:
        return np.maximum(first, second)
    return first if first > second else second  # noqa: FURB136  (a call of max takes three times as long)


def minimum(first: Floats, second: Floats) -> Floats:
    if type(first) is ndarray or type(second) is ndarray:
        return np.minimum(first, second)
    return first if first < second else second  # noqa: FURB136


def ceil(values: Floats) -> Floats:
    """Smallest whole numbers that are not less."""
    return np.ceil(values) if type(values) is ndarray else -(-values // 1)


def root(values: Floats) -> Floats:
    return np.sqrt(values) if type(values) is ndarray else math.sqrt(values)


def binary_logarithm(values: Floats) -> Floats:
    return np.log2(values) if type(values) is ndarray else math.log2(values)


def quotient(dividend: Floats, divisor: Floats) -> Floats:
    """Quotient of numbers that are not negative; infinity or NaN where the divisor is zero and another term counts."""
    if type(dividend) is ndarray or type(divisor) is ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.true_divide(dividend, divisor)
    if divisor:
        return dividend / divisor
    return math.inf if dividend else math.nan


def inverted(condition: Bools) -> Bools:
    """True where the condition is false. The operator ``~`` of a Python bool is that of an integer."""
    return ~condition if type(condition) is ndarray else not condition


def is_in(values: Floats, codes: Collection[int]) -> Bools:
    return np.isin(values, [*codes]) if type(values) is ndarray else values in codes


def anywhere(condition: Bools) -> bool:
    """Return whether the condition is true for at least one plan."""
    return bool(condition.any()) if isinstance(condition, ndarray) else condition


def common_divisor(first: Floats, second: Floats) -> Floats:
    if type(first) is ndarray or type(second) is ndarray:
        return np.gcd(np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64))
    return math.gcd(int(first), int(second))


def interpolated(values: Floats, points: Sequence[float], heights: Sequence[float]) -> Floats:
    """Linear interpolation between points, constant beyond the first and the last."""
    if type(values) is ndarray:
        return np.interp(values, points, heights)
    if values <= points[0]:
        return heights[0]
    for left, right, low, high in zip(points, points[1:], heights, heights[1:], strict=False):
        if values <= right:
            return low + (high - low) / (right - left) * (values - left)
    return heights[-1]


def largest_index(values: Sequence[Floats]) -> Ints:
    """Position of the largest of several terms, plan by plan; the first of equal ones."""
    if any(type(value) is ndarray for value in values):
        index: NDArray[np.int64] = np.argmax(np.stack(np.broadcast_arrays(*values)), axis=0)
        return index
    return max(range(len(values)), key=values.__getitem__)


def choose(index: Ints, options: Sequence[Floats]) -> Floats:
    """Return the option at an index, plan by plan."""
    if not isinstance(index, ndarray):
        return options[index]
    result = options[0]
    for position, option in enumerate(options[1:], start=1):
        result = np.where(index == position, option, result)
    return result


def largest(values: Sequence[Floats]) -> Floats:
    """Largest of several terms, plan by plan."""
    return reduce(maximum, values)


def smallest(values: Sequence[Floats]) -> Floats:
    """Smallest of several terms, plan by plan."""
    return reduce(minimum, values)
