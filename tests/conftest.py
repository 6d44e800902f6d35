"""Conditions of every test: no network, no AWS account, no randomness, and what may share a process.

Property tests draw no example at random: Hypothesis derives them from the test, and from the constants of the modules
that are loaded. `make explore` draws at random, and more of them. A failure that it finds becomes an `@example` or a
test. The profile sets the number of examples, and a dear test takes a share of it: a number in a test would hold for
every profile.
"""

import gc
import importlib
import os
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.requirements"]  # a skipped test fails

# Hypothesis' own profile for continuous integration, for all: no chance, no limits of time, failures with their blob.
# A share of its examples, because each run would try the same ones.
settings.register_profile("suite", settings.get_profile("ci"), max_examples=15)
settings.load_profile("suite")
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
# The tests share the cores, and threads that wait for work take time from each other.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# jsonschema would compile the grammar of international addresses, for longer than half of the tests are collected.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# A shell starts what runs in the background with interrupts ignored. Tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some installed packages also contain a `benchmarks` package.
sys.modules.setdefault("benchmarks", ModuleType("benchmarks")).__path__ = [
    str(Path(__file__).parents[1] / "benchmarks")
]

LOOPBACK = {"", "127.0.0.1", "::1", "localhost", "0.0.0.0"}


def refuse_network(event: str, arguments: tuple) -> None:
    """Let this process reach only this machine: the advisor promises to work with no network."""
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in LOOPBACK:
        raise ConnectionRefusedError(f"a test reached for the network: {arguments[1]}")


sys.addaudithook(refuse_network)


PARTS = ("browser", "moto", "packaging", "torch", "slow", "unit")
"""Markers, in the order in which their tests start: those that wait for other programs first."""
GROUPS = {
    r"(tests/browser)/": "{}",
    r"tests/export/.*?\[.*?v\d-(newest|oldest)": "cells with the {}",
    r"tests/export/test_(random_requests)\.py": "cells with the newest",
    r"tests/packaging/test_(build_from_clone|clean_install|wheel)\.py": "distributions",
    r"tests/test_saved_notebooks\.py.*\[(\w+)": "notebook {}",
    r"tests/(?:test_(architecture|doors|patterns)|libraries/test_registry|packaging/test_imports)": "trees",
    r"(.*?)::": "{}",
}
"""Tests that share a browser, an SDK or other work, by their identifier: each group runs in one process."""
OF_A_RELEASE = re.compile(
    r"oldest|^tests/fuzz/(?!.*sample)|test_every_request_is_the_expected_one"
    r"|test_the_blocks_of_a_page_run.*running_job|test_nothing_keeps_assistive.*(vscode|colab)|without_proc.*macos"
    r"|_seen_as_its_kind\[(?!order, an early stop\]|uneven).*,|blocks_of_a_page_run.*rehearse_your_job"
)
"""Tests of `make release-test` alone: the oldest applications and SDKs, other ones, random jobs, actions and arguments,
and further forms of a defect."""


def group_of(identifier: str) -> str:
    """Return the group of a test."""
    found, group = next((found, group) for place, group in GROUPS.items() if (found := re.match(place, identifier)))
    return group.format(found[1])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Send each group to one process, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def part_of(item: pytest.Item) -> str:
    """The part of the suite to which a test belongs."""
    return next((part for part in PARTS if item.get_closest_marker(part)), "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note the part of each test. In several processes, the longest parts start first."""
    for item in items:
        item.user_properties.append(("part", part_of(item)))
        if OF_A_RELEASE.search(item.nodeid):
            item.add_marker(pytest.mark.release)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: PARTS.index(part_of(item)))


IN_CHILDREN = (
    *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.optim"),
    *("torch.distributed.checkpoint.state_dict", "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"),
    *("torch.profiler._cupti_monitor", "torch.utils.serialization", "transformers.models.gpt2.modeling_gpt2"),
    *(f"smp_advisor.rehearsal.{name}" for name in ("process", "stages")),
    *(f"smp_advisor.profiling.{name}" for name in ("fallback", "scaled.training")),
)
"""Modules that child processes of the advisor import first: of PyTorch, those of the first step of a training."""


@cache
def import_pytorch() -> None:
    """Import what child processes need: they are forks of this one."""
    for module in IN_CHILDREN:
        importlib.import_module(module)
    importlib.import_module("smp_advisor.sandbox").share_interpreter()
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("torch") and find_spec("torch"):
        import_pytorch()


def processor_seconds() -> float:
    """Those of this process, and of its children that have ended."""
    return sum(os.times()[:4])


counted = [processor_seconds()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Note the processor time since the report before."""
    report, now = (yield), processor_seconds()
    report.processor_seconds, counted[0] = now - counted[0], now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of each part. Several processes share it: together the parts take longer than the run."""
    seconds, used, tests = defaultdict(float), defaultdict(float), defaultdict(set)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = dict(report.user_properties).get("part", "crashed")  # xdist's report of a process that ended
                seconds[part] += report.duration
                used[part] += getattr(report, "processor_seconds", 0)
                tests[part].add(report.nodeid)
    for part in seconds:
        terminalreporter.write_line(
            f"{part}: {len(tests[part]):,} tests in {seconds[part]:.0f} s, {used[part]:.0f} of a processor"
        )
    terminalreporter.write_line(f"all: {processor_seconds():.0f} s of a processor")


@pytest.fixture(scope="session", autouse=True)
def day() -> Iterator[None]:
    """The day of the table is the day of every answer: images keep their patches while tests are kept."""
    from smp_advisor.cluster import containers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(containers, "today", containers.table_date)
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The top folder of the repository."""
    return Path(__file__).parents[1]


@pytest.fixture
def first_stage(monkeypatch):
    """Rehearse without the stages that are compared with the first."""
    monkeypatch.setattr("smp_advisor.rehearsal.stages._Rehearsed._further", lambda *_: None)


@pytest.fixture
def shell():
    """A shell of a terminal with the extension loaded."""
    from IPython.core.interactiveshell import InteractiveShell

    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "smp_advisor")
    yield made
    made.run_line_magic("unload_ext", "smp_advisor")
    InteractiveShell.clear_instance()
