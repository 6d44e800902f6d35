"""Number of calls of the fuzz test."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-inputs", type=int, default=800, help="calls of the public functions in tests/fuzz")
    parser.addoption("--fuzz-seed", type=int, default=20_261_122, help="seed of the calls in tests/fuzz")
