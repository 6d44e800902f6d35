"""One version, one licence, and a lock file that any registry can serve."""

from __future__ import annotations

import importlib.metadata
import json
import tomllib

import pytest

from smp_advisor._version import __version__


@pytest.fixture
def package(root) -> dict:
    return json.loads((root / "js" / "package.json").read_text())


@pytest.fixture
def lock(root) -> dict:
    return json.loads((root / "js" / "package-lock.json").read_text())


def test_python_and_javascript_agree_on_the_version(package, lock):
    assert package["version"] == lock["version"] == __version__


def test_the_installed_metadata_has_the_same_version():
    assert importlib.metadata.version("smp-advisor") == __version__


def test_python_and_javascript_agree_on_the_licence(root, package):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert package["license"] == project["license"] == "Apache-2.0"


def test_the_lock_file_names_no_registry(lock):
    assert [name for name, entry in lock["packages"].items() if "resolved" in entry and not entry.get("link")] == []
