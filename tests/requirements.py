"""Tests do not pass by being skipped.

A test with a marker of `REQUIREMENTS` requires something that a machine may lack. Where it is missing, the test fails
with a sentence. ``--without=torch`` leaves out its tests, and the summary counts them. ``make test WITHOUT="torch"``
passes it on. Any other skip is a failure.
"""

import importlib.util
import shutil
from collections.abc import Callable, Generator
from functools import cache, partial

import pytest

LEFT_OUT = "left out by --without="

PACKAGES = {
    "browser": ("playwright",),
    "moto": ("boto3", "moto", "sagemaker"),
    "packaging": ("build", "hatchling"),
    "sagemaker": ("sagemaker",),
    "tools": ("mcp", "shtab"),
    "torch": ("torch", "transformers"),
    "transformers": ("tokenizers", "transformers"),
}
"""The packages that a marker requires; modules of tests may import them."""


def absent(requirement: str) -> str:
    """The packages of a requirement that are not installed."""
    return ", ".join(name for name in PACKAGES[requirement] if importlib.util.find_spec(name) is None)


def browser() -> str:
    """The package that drives the browser, or the browser."""
    from scripts.browser import missing

    return absent("browser") or missing()


def build_tools() -> str:
    """The tools that build the distributions."""
    return absent("packaging") or ("" if shutil.which("npm") else "npm")


REQUIREMENTS: dict[str, Callable[[], str]] = {marker: partial(absent, marker) for marker in PACKAGES}
REQUIREMENTS |= {"browser": browser, "packaging": build_tools}
"""For each marker, what is missing on this machine."""
missing = {marker: cache(function) for marker, function in REQUIREMENTS.items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without",
        action="append",
        default=[],
        choices=sorted(REQUIREMENTS),
        help="leave out the tests that require this; a requirement that is missing fails its tests otherwise",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out, or fail it, for what it requires."""
    required = [name for name in REQUIREMENTS if item.get_closest_marker(name)]
    for name in required:
        if name in item.config.getoption("without"):
            pytest.skip(LEFT_OUT + name)
    for name in required:
        if lacking := missing[name]():
            pytest.fail(f"this test requires {lacking}: install it, or run with --without={name}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test fails, unless it was left out or is expected to fail."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A skipped module fails, and one that imports what is left out is left out."""
    report = yield
    if report.skipped:
        fail(report)
    elif report.failed and (name := left_out(report.call.excinfo, collector.config.getoption("without"))):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, LEFT_OUT + name)
    return report


def left_out(error: pytest.ExceptionInfo[BaseException], without: list[str]) -> str:
    """The requirement that is left out and whose package an import did not find."""
    cause = error.value.__cause__ or error.value
    package = cause.name.partition(".")[0] if isinstance(cause, ModuleNotFoundError) and cause.name else ""
    return next((name for name in without if package in PACKAGES.get(name, ())), "")


def fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure, with its reason."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if LEFT_OUT not in reason:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid}: {reason}\nA skipped test is a failure: use a marker of tests/requirements.py."
        )
