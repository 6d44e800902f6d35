"""The command over folders, patterns and the standard input, with selected checks and annotations."""

from __future__ import annotations

import io
import json

import pytest

from smp_advisor.scripts.__main__ import main
from tests.scripts import samples

BROKEN = samples.PIPELINE.replace(", drop_last=True", "").replace("    smp.init()\n", "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(samples.PIPELINE_PLAN))
    (tmp_path / "jobs" / ".hidden").mkdir(parents=True)
    for name in ("jobs/train.py", "jobs/.hidden/old.py", "other.py"):
        (tmp_path / name).write_text(BROKEN)
    return tmp_path


def checked(capsys, *arguments: str) -> tuple[int, list[str], list[str]]:
    status = main([*arguments, "--plan", "plan.json", "--format", "json"])
    data = json.loads(capsys.readouterr().out)
    reports = data if isinstance(data, list) else [data]
    return status, [report["path"] for report in reports], [f["id"] for report in reports for f in report["findings"]]


@pytest.mark.parametrize(
    ("argument", "paths"),
    [("jobs", ["jobs/train.py"]), ("*.py", ["other.py"]), ("**/train.py", ["jobs/train.py"])],
)
def test_folders_and_patterns(folder, capsys, argument, paths):
    assert checked(capsys, argument)[1] == paths


def test_the_standard_input(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(BROKEN))
    assert set(checked(capsys, "-")[2]) == {"SMP101", "SMP109"}


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--select", "SMP109"], {"SMP109"}),
        (["--ignore", "SMP109"], {"SMP101"}),
        (["--select", "smp1", "--ignore", "SMP101"], {"SMP109"}),
        (["--select", "DDP"], set()),
    ],
)
def test_selected_checks_decide_the_exit_status(folder, capsys, arguments, ids):
    status, _, reported = checked(capsys, "other.py", *arguments)
    assert set(reported) == ids
    assert status == int(bool(ids))


def test_annotations_of_github(folder, capsys):
    main(["other.py", "--plan", "plan.json", "--format", "github", "--select", "SMP109"])
    line = capsys.readouterr().out
    assert line.startswith("::error file=other.py,line=")
    assert "title=SMP109" in line
    assert "::This DataLoader keeps the last batch" in line


def test_the_report_goes_to_a_file(folder, capsys):
    main(["other.py", "--output", "report.txt"])
    assert not capsys.readouterr().out
    assert "Rules applied: SMP v1 (PyTorch)." in (folder / "report.txt").read_text()


def test_a_folder_without_scripts_is_an_error(folder, capsys):
    (folder / "empty").mkdir()
    assert main(["empty"]) == 2
    assert "has no .py file and no notebook" in capsys.readouterr().err


def test_settings_of_the_project(folder, capsys):
    project = '[tool.smp_advisor]\nselect = ["SMP109"]\nplan = "plan.json"\nlibrary = "smp-v1"\n'
    (folder / "pyproject.toml").write_text(project)
    main(["other.py", "--format", "json"])
    assert [finding["id"] for finding in json.loads(capsys.readouterr().out)["findings"]] == ["SMP109"]
    assert set(checked(capsys, "other.py", "--select", "SMP101")[2]) == {"SMP101"}
    (folder / "pyproject.toml").write_text("[tool.smp_advisor]\nselected = 1\n")
    assert main(["other.py"]) == 2
    assert "has no setting selected = 1" in capsys.readouterr().err


def test_changes_are_shown_and_not_written(folder, capsys):
    main(["other.py", "--plan", "plan.json", "--diff", "--select", "SMP109"])
    assert "drop_last=True" in (difference := capsys.readouterr().err)
    assert "+    smp.init()" not in difference
    assert (folder / "other.py").read_text() == BROKEN
