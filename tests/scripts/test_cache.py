"""Results of earlier runs are used only while everything that decided them is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smp_advisor.scripts import __main__ as command
from smp_advisor.scripts.__main__ import main
from tests.scripts import samples

BROKEN = samples.PIPELINE.replace(", drop_last=True", "")
NUMBERS = ["--microbatches", "4"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("SMP_ADVISOR_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import sizes\n" + BROKEN)
    (folder / "sizes.py").write_text("SIZE = 1\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def checked(monkeypatch):
    """Files that are checked anew."""
    names = []
    judged = command.judged
    monkeypatch.setattr(command, "judged", lambda source, *rest: names.append(source.path) or judged(source, *rest))
    return names


def run(capsys, *options):
    status = main(["train.py", *NUMBERS, *options])
    return status, capsys.readouterr().out


def stored(project):
    return sorted((project.parent / "cache" / "checks").glob("*.json"))


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_a_second_run_reports_the_same(project, checked, capsys, form):
    first = run(capsys, "--format", form)
    second = run(capsys, "--format", form)
    assert first == second
    assert first[0] == 1
    assert checked == ["train.py"]


def test_no_cache_reads_and_writes_nothing(project, checked, capsys):
    run(capsys, "--no-cache")
    assert not stored(project)
    run(capsys)
    run(capsys, "--no-cache")
    assert len(checked) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "train.py").write_text(samples.PIPELINE),
        lambda folder: (folder / "sizes.py").write_text("SIZE = 2\n"),
        lambda folder: (folder / "sizes.py").unlink(),
        lambda folder: (folder / "torch.py").write_text("x = 1\n"),
        lambda folder: (folder / "user.py").write_text("import train\n"),
    ],
    ids=["script", "module", "module is gone", "module that did not exist", "file that imports the script"],
)
def test_a_changed_file_is_checked_again(project, checked, capsys, change):
    run(capsys)
    change(project)
    run(capsys)
    assert checked == ["train.py", "train.py"]


def test_other_settings_are_another_result(project, checked, capsys):
    run(capsys)
    assert run(capsys, "--microbatches", "1")[0] == 0
    assert run(capsys)[0] == 1
    assert len(checked) == 2


@pytest.mark.parametrize("damage", ["", "[]", "{", "nested", "finding", "number", "huge", "folder"])
def test_damaged_or_foreign_content_is_ignored(project, checked, capsys, damage):
    expected = run(capsys)
    (file,) = stored(project)
    data = json.loads(file.read_text())
    if damage == "finding":
        data["outcome"]["findings"][0]["id"] = "XYZ"
    elif damage == "number":
        data["outcome"]["findings"][0]["line"] = "<script>"
    text = {"nested": "[" * 100_000, "huge": "x" * 3_000_000}.get(damage, damage)
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text(json.dumps(data) if damage in ("finding", "number") else text)
    assert run(capsys) == expected
    assert len(checked) == 2


def test_a_folder_that_cannot_be_written_is_no_error(project, monkeypatch, capsys):
    monkeypatch.setenv("SMP_ADVISOR_CACHE_DIR", str(project / "train.py"))
    assert run(capsys)[0] == 1


def test_the_folder_stays_small(project, monkeypatch, capsys):
    monkeypatch.setattr("smp_advisor.scripts.command.cache._MOST_RESULTS", 4)
    for number in range(12):
        Path(f"part{number}.py").write_text("print(1)\n")
        main([f"part{number}.py"])
        assert len(stored(project)) <= 4
