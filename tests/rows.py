"""Tables of which some rows are tested before a release alone."""

from collections.abc import Iterable
from typing import Any

import pytest


def rows(table: Iterable[Any], *of_a_release: Any) -> list:
    """Return the rows of a table, a tuple for several arguments; those `of_a_release` are of `make release-test`."""
    assert {*of_a_release} <= {*table}, of_a_release
    marked = {
        row: pytest.param(*([row] if isinstance(row, str) else row), marks=pytest.mark.release) for row in of_a_release
    }
    return [marked.get(row, row) for row in table]
