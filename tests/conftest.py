"""Conditions of every test: no network, no AWS account, no randomness, and the distribution over processes.

Property tests try the same examples in every run and on every machine. Hypothesis derives them from the test and from
the constants in the modules that are loaded when collection ends. One folder alone therefore tries other examples than
the full suite, and so does the next commit. `make explore` draws examples at random, and more of them. A failure that
it finds becomes an `@example` or a test. The profile sets the number of examples: a number in a test would hold for
every profile.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# Hypothesis' own profile for continuous integration, for all: no chance, no limits of time, failures with their blob.
settings.load_profile("ci")
settings.register_profile(
    "explore",
    settings.get_profile("default"),
    max_examples=500,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a shared machine is slow at times, which is no failure
)

# For this process and its children: no account, profile or region of the developer's.
for name in [name for name in os.environ if name.startswith(("AWS_", "SAGEMAKER_"))]:
    del os.environ[name]
os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
# The SDK would look for credentials at the metadata service, transformers at a hub.
os.environ |= {"AWS_EC2_METADATA_DISABLED": "true", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

LOOPBACK = {"", "127.0.0.1", "::1", "localhost", "0.0.0.0"}


def refuse_network(event: str, arguments: tuple) -> None:
    """Let this process reach only this machine: the advisor promises to work with no network."""
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in LOOPBACK:
        raise ConnectionRefusedError(f"a test reached for the network: {arguments[1]}")


sys.addaudithook(refuse_network)


PARTS = ("browser", "moto", "packaging", "slow", "unit")
"""Markers, in the order in which their tests start: those that wait for other programs first."""


def pytest_xdist_auto_num_workers() -> int:
    """One process per core, and one more: a test in a browser waits more than it computes."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a module's tests in one process, so that what they share is made once; the longest parts start first."""
    parts = {item: next((part for part in PARTS if item.get_closest_marker(part)), "unit") for item in items}
    for item, part in parts.items():
        item.user_properties.append(("part", part))
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: PARTS.index(parts[item]))


def pytest_collection_finish() -> None:
    """Fix the constants that Hypothesis tries: the modules that other tests load later depend on the distribution."""
    constants = providers._get_local_constants()
    providers._get_local_constants = lambda: constants


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of each part. Several processes share it: together the parts take longer than the run."""
    seconds, tests = defaultdict(float), defaultdict(set)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = dict(report.user_properties)["part"]
                seconds[part] += report.duration
                tests[part].add(report.nodeid)
    for part in seconds:
        terminalreporter.write_line(f"{part}: {len(tests[part]):,} tests in {seconds[part]:.0f} s")


@pytest.fixture(scope="session")
def root() -> Path:
    """The top folder of the repository."""
    return Path(__file__).parents[1]
