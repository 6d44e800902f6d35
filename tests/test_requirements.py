"""A skipped test fails, unless it was left out on request."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from scripts import browser

MODULES = {
    "tests/__init__.py": "",
    "test_marked.py": """
import pytest

@pytest.mark.browser
def test_requires_browser():
    pass

@pytest.mark.skip(reason="another day")
def test_with_a_marker():
    pass

def test_in_its_body():
    pytest.importorskip("no_such_package")

@pytest.mark.xfail(reason="a known defect", strict=True)
def test_of_a_known_defect():
    raise ValueError
""",
    "test_module.py": """
import pytest

pytest.importorskip("no_such_package")
""",
    "test_group.py": """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(6))
def test_in_one_process(number):
    with Path("processes").open("a") as file:
        print(os.getpid(), file=file)
""",
    "conftest.py": """
from tests import requirements

requirements.missing["browser"] = lambda: "a browser"

def pytest_configure(config):
    config.addinivalue_line("markers", "browser: as in the project")
""",
}


@pytest.mark.slow
def test_a_skip_is_a_failure_unless_it_was_left_out(root, tmp_path):
    (tmp_path / "tests").mkdir()  # with this name: the plugins import each other
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    for name, copied in (("requirements", "requirements"), ("conftest", "suite")):
        shutil.copy(root / f"tests/{name}.py", tmp_path / f"tests/{copied}.py")

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "tests.suite", "-p", "no:cacheprovider", *options]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
        assert done.returncode == 1, done.stderr
        return done.stdout

    one_process = run("test_marked.py")
    required = "a browser: install it, or run with --without=browser"
    assert f"this test requires {required}" in one_process
    assert "Skipped: another day\nA skipped test is a failure" in one_process
    assert re.search(r" 1 failed, 1 xfailed, 2 errors in", one_process)  # an error is a failure before the test's body
    workers = run("--numprocesses=2", "--without=browser", "--continue-on-collection-errors", "-rs")
    assert "left out by --without=browser" in workers
    assert re.search(r" 1 failed, 6 passed, 1 skipped, 1 xfailed, 2 errors in", workers)
    assert len(set((tmp_path / "processes").read_text().split())) == 1, "a group runs in one process"


@pytest.mark.parametrize(
    ("programs", "answer"),
    [
        (["chromium", "msedge"], ""),
        (["brew"], "Chrome, Chromium or Edge (brew install --cask google-chrome)"),
        (["dnf"], "Chrome, Chromium or Edge (sudo dnf install chromium)"),
        ([], "Chrome, Chromium or Edge (on the PATH, or its path in SMP_ADVISOR_BROWSER)"),
    ],
)
def test_an_installed_browser_is_found_or_its_package_named(programs, answer, tmp_path, monkeypatch):
    for name in [*programs, "mine"]:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "APPLICATIONS", ())
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    assert browser.missing() == answer
    monkeypatch.setenv(browser.VARIABLE, "mine")
    assert browser.installed() == str(tmp_path / "mine")
    monkeypatch.setenv(browser.VARIABLE, "another")
    assert browser.missing() == "a browser, and SMP_ADVISOR_BROWSER=another is no program"
