"""Workflows, recipe and lists of versions are in step with pyproject.toml and the Makefile."""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from scripts.matrix import PYTHONS
from smp_advisor._version import __version__


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def recipe(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "recipe" / "recipe.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def workflows(root: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (root / ".github/workflows").glob("*.yml")}


def steps(workflow: dict[str, Any], key: str) -> list[Any]:
    return [step[key] for job in workflow["jobs"].values() for step in job["steps"] if key in step]


def bounds(lines: list[str]) -> dict[str, SpecifierSet]:
    """Versions by package; the recipe has a space between them."""
    return {entry.name: entry.specifier for entry in map(Requirement, lines)}


def test_workflows_run_the_command_of_continuous_integration_and_targets_that_exist(root, workflows):
    assert ".ci/run" in steps(workflows["test"], "run")
    assert "make dist" in steps(workflows["release"], "run")
    targets = set(re.findall(r"^([\w-]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))
    used = {
        name for flow in workflows.values() for run in steps(flow, "run") for name in re.findall(r"make (\w+)", run)
    }
    assert {"dist", "matrix"} <= used <= targets


def test_actions_are_pinned_by_commit_with_their_version(root):
    for path in (root / ".github/workflows").glob("*.yml"):
        for line in path.read_text("utf-8").splitlines():
            if "uses:" in line:
                assert re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_workflows_use_the_python_and_the_node_of_the_project(root, project, workflows):
    oldest = project["requires-python"].removeprefix(">=")
    minimum = re.search(r"Node (\d+)\.\d+", (root / "scripts/frontend.sh").read_text("utf-8"))[1]
    assert workflows["test"]["jobs"]["test"]["container"].startswith(f"python:{oldest}-")
    settings = [entry for flow in workflows.values() for entry in steps(flow, "with")]
    assert {entry["node-version"] for entry in settings if "node-version" in entry} == {minimum}
    pythons = {entry["python-version"] for entry in settings if "python-version" in entry}
    assert pythons == {oldest, "${{ matrix.python }}"}


def test_the_workflow_has_every_python_of_the_metadata(project, workflows):
    assert set(PYTHONS) <= set(workflows["test"]["jobs"]["matrix"]["strategy"]["matrix"]["python"])
    assert project["requires-python"] == f">={PYTHONS[0]}"


def test_only_jobs_that_need_more_may_do_more_than_read(workflows):
    for workflow in workflows.values():
        assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflows["test"]["jobs"]["test"]
    assert workflows["release"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert workflows["release"]["jobs"]["publish"]["environment"] == "pypi"


def test_the_oldest_dependencies_are_the_lower_bounds(root, project):
    lines = (root / "constraints-oldest.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line.partition(" #")[0]) for line in lines if line and not line.startswith("#")]
    for requirement in map(Requirement, project["dependencies"]):
        (minimum,) = (bound.version for bound in requirement.specifier if bound.operator == ">=")
        versions = [pin for pin in pins if pin.name == requirement.name]
        assert Version(str(versions[0].specifier).removeprefix("==")) == Version(minimum)
        for python in PYTHONS:  # one version for each
            environment = {"python_version": python}
            assert sum(not pin.marker or pin.marker.evaluate(environment) for pin in versions) == 1, requirement.name
    assert {pin.name for pin in pins} - {"pyarrow"} == {Requirement(line).name for line in project["dependencies"]}


def test_the_recipe_is_that_of_the_metadata(project, recipe):
    assert recipe["context"]["version"] == __version__
    run = bounds(recipe["requirements"]["run"])
    assert run.pop("python") == SpecifierSet(project["requires-python"])
    assert run == bounds(project["dependencies"])
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {function}" for name, function in project["scripts"].items()
    ]
    assert recipe["about"]["homepage"] == project["urls"]["Homepage"]
    assert recipe["about"]["license"] == project["license"]


def test_the_recipe_builds_with_tools_of_the_metadata(root, recipe):
    system = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    host = bounds(recipe["requirements"]["host"])
    assert {name: host[name] for name in ("hatchling", "hatch-jupyter-builder")}.items() <= bounds(system).items()


def test_python_and_javascript_have_one_version_one_license_and_a_lock_file_without_a_registry(root, project):
    package, lock = (
        json.loads((root / "js" / name).read_text("utf-8")) for name in ("package.json", "package-lock.json")
    )
    assert package["version"] == lock["version"] == importlib.metadata.version("smp-advisor") == __version__
    assert package["license"] == project["license"] == "Apache-2.0"
    assert [name for name, entry in lock["packages"].items() if "resolved" in entry and not entry.get("link")] == []


def test_links_of_the_metadata_lead_to_files_that_exist(root, project):
    home = project["urls"]["Homepage"]
    for url in project["urls"].values():
        assert url.startswith(home)
        if found := re.search(r"/(?:blob|tree)/main/(.*)", url):
            assert (root / found[1]).exists()


def test_the_front_end_is_installed_from_its_lock_file(root):
    files = [*(root / "scripts").glob("*.sh"), root / "Makefile", *(root / ".github/workflows").glob("*.yml")]
    assert not [file.name for file in files if re.search(r"npm (install|i)\b", file.read_text("utf-8"))]
    assert json.loads((root / "js/package.json").read_text("utf-8"))["jupyterlab"]["webpackConfig"]
