"""SARIF for code hosts: one run, relative paths, ends of places, fixes and stable fingerprints."""

import json
from typing import Any

import pytest

from smp_advisor.command.__main__ import main as command
from tests.scripts import samples

BROKEN = samples.PIPELINE.replace(", drop_last=True", "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(samples.PIPELINE_PLAN))
    (tmp_path / "a").mkdir()
    for name in ("a/one.py", "two.py"):
        (tmp_path / name).write_text(BROKEN)
    return tmp_path


def run(capsys, *scripts: object) -> dict[str, Any]:
    command(["check", *map(str, scripts), "--plan", "plan.json", "--format", "sarif"])
    (only,) = json.loads(capsys.readouterr().out)["runs"]
    return only


def test_places_have_paths_and_ends(folder, capsys):
    results = run(capsys, folder / "a" / "one.py", "two.py")["results"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    assert places == ["a/one.py", "two.py"]
    assert len({json.dumps(result["partialFingerprints"]) for result in results}) == 2

    (result,) = run(capsys, "two.py")["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    line = BROKEN.splitlines()[region["startLine"] - 1]
    assert region["endLine"] == region["startLine"]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1].startswith("DataLoader(")
    assert line[: region["endColumn"] - 1].endswith(")")


def test_a_fingerprint_stays_if_other_lines_change(folder, capsys):
    (before,) = run(capsys, "two.py")["results"]
    (folder / "two.py").write_text("# a comment\n" + BROKEN)
    (after,) = run(capsys, "two.py")["results"]
    assert before["partialFingerprints"] == after["partialFingerprints"]
    assert before["locations"] != after["locations"]


REQUIRED = {
    "": ["version", "runs"],
    "runs": ["tool"],
    "driver": ["name"],
    "rules": ["id"],
    "results": ["message"],
    "invocations": ["executionSuccessful"],
    "toolExecutionNotifications": ["message"],
    "message": ["text"],
    "help": ["text", "markdown"],
}
"""Required properties of the objects in the schema of SARIF 2.1.0, and the page of a rule."""


def objects(data: object, name: str = "") -> list[tuple[str, dict[str, Any]]]:
    if isinstance(data, list):
        return [entry for item in data for entry in objects(item, name)]
    if not isinstance(data, dict):
        return []
    return [(name, data), *(entry for key, value in data.items() for entry in objects(value, key))]


def test_required_properties_are_there(folder, capsys):
    (folder / "broken.py").write_text("(")
    (folder / "two.py").write_text("from somewhere import *\n" + BROKEN)
    status = command(["check", ".", "--plan", "plan.json", "--format", "sarif"])
    log = json.loads(capsys.readouterr().out)
    seen = set()
    for name, value in objects(log):
        assert set(REQUIRED.get(name, ())) <= set(value), name
        seen.add(name)
    assert set(REQUIRED) <= seen
    assert status == 2
    assert not log["runs"][0]["invocations"][0]["executionSuccessful"]


def test_an_absolute_path_outside_of_the_folder_is_a_file_uri(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder / "a")
    command(["check", "../two.py", "--plan", str(folder / "plan.json"), "--format", "sarif"])
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == (folder / "two.py").as_uri()
