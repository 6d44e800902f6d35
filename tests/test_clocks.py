"""No test passes or fails by the clock: the check of `make lint`."""

from __future__ import annotations

import importlib.util

import pytest

BAD = """
def test_speed():
    start = time.perf_counter()
    work()
    {}
"""


@pytest.fixture(scope="module")
def clocks(root):
    spec = importlib.util.spec_from_file_location("clocks", root / "scripts" / "clocks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "end",
    [
        "assert time.perf_counter() - start < 2",
        "spent = time.perf_counter() - start\n    assert spent < LIMIT and work()",
        "spent = []\n    spent.append(time.process_time() - start)\n    assert min(spent) < 2",
        "first, second = start, process_time_ns()\n    assert not 1 < second - first, 'slow'",
    ],
)
def test_a_time_that_is_compared_is_found(clocks, end):
    source = BAD.format(end)
    assert clocks.timed_assertions(source) == [source.count("\n")]


@pytest.mark.parametrize(
    "end",
    [
        "print(time.perf_counter() - start)\n    assert work() < 2",
        "while time.monotonic() < start + 600 and not done():\n        pass\n    assert done() == 3",
        "assert steps < 1_000",
    ],
)
def test_a_wait_with_a_limit_is_not(clocks, end):
    assert clocks.timed_assertions(BAD.format(end)) == []
