"""Tables of which some rows are tested before a release alone."""

from collections.abc import Iterable
from typing import Any

import pytest


def rows(table: Iterable[Any], *of_a_release: Any, share: int = 1) -> list:
    """Return the rows, a tuple for several arguments, of which one in `share` and none `of_a_release` is in the suite.

    `make release-test` has all.
    """
    listed = [*table]
    assert all(row in listed for row in of_a_release), of_a_release
    return [
        pytest.param(*([row] if isinstance(row, str) else row), marks=pytest.mark.release)
        if place % share or row in of_a_release
        else row
        for place, row in enumerate(listed)
    ]
