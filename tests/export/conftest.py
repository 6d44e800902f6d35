"""The distribution of the tests that run cells."""

from __future__ import annotations

import pytest

from tests.moto_harness.notebooks import ENVIRONMENTS


def pytest_itemcollected(item: pytest.Function) -> None:
    """Run the cells of an SDK in one process, which then starts that SDK once."""
    if item.get_closest_marker("moto"):
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        environment = next((value for value in parameters if value in ENVIRONMENTS), "v2-newest")
        item.add_marker(pytest.mark.xdist_group(f"cells with {environment}"))
