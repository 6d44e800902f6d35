"""The script panel's side of the kernel: what is shown, and that fixes are written only as they were looked at."""

from __future__ import annotations

import pytest

from smp_advisor import Plan
from smp_advisor.notebook.checks import checked, fixed

SCRIPT = """\
import argparse

import smdistributed.modelparallel.torch as smp

parser = argparse.ArgumentParser()
args = parser.parse_args()
print(smp.rank())
"""
PLAN = Plan(library="smp-v1")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def request(path, shown, finding=None, **changes):
    if finding is None:
        return {"path": str(path), "check": "", "diff": shown["together"]["diff"], "in_place": False, **changes}
    return {
        "path": str(path),
        "check": finding["id"],
        "place": finding["place"],
        "column": finding["column"],
        "diff": finding["fix"]["diff"],
        "in_place": False,
        **changes,
    }


def test_findings_come_with_their_changes(script):
    shown = checked(str(script), PLAN)
    assert [(one["id"], bool(one["fix"])) for one in shown["findings"]] == [("SMP133", True), ("SMP101", True)]
    assert "+args = parser.parse_known_args()[0]" in shown["findings"][0]["fix"]["diff"]
    assert shown["together"]["title"] == "All automatic fixes together: SMP101, SMP133"
    assert "+smp.init()" in shown["together"]["diff"]
    assert script.read_text() == SCRIPT


def test_one_fix_in_place_keeps_a_backup_and_says_so(script):
    shown = checked(str(script), PLAN)
    after = fixed(request(script, shown, shown["findings"][0], in_place=True), PLAN)
    assert script.read_text() == SCRIPT.replace("parse_args()", "parse_known_args()[0]")
    assert (script.parent / "train.py.bak").read_text() == SCRIPT
    assert after["summary"].startswith(f"Wrote {script}; the previous file is train.py.bak. ")
    assert [one["id"] for one in after["findings"]] == ["SMP101"]
    assert after["together"] is None


def test_all_fixes_go_to_a_copy(script):
    after = fixed(request(script, checked(str(script), PLAN)), PLAN)
    assert script.read_text() == SCRIPT
    copy = script.parent / "train.fixed.py"
    assert copy.read_text() == SCRIPT.replace("parse_args()", "parse_known_args()[0]").replace(
        "print(", "smp.init()\nprint("
    )
    assert after["summary"].startswith(f"Wrote {copy}. ")
    assert len(after["findings"]) == 2  # of the script itself


@pytest.mark.parametrize("single", [True, False])
def test_a_file_that_changed_since_is_left_alone(script, single):
    shown = checked(str(script), PLAN)
    other = "# another line\n" + SCRIPT
    script.write_text(other)
    finding = shown["findings"][0] if single else None
    after = fixed(request(script, shown, finding, in_place=True), PLAN)
    assert script.read_text() == other
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]
    assert after["summary"].startswith("Nothing was written: ")


def test_a_file_that_cannot_be_written_or_is_gone_is_a_sentence(script, monkeypatch):
    shown = checked(str(script), PLAN)
    asked = request(script, shown, shown["findings"][0], in_place=True)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", refuse)
        assert fixed(asked, PLAN)["summary"].startswith(
            f"Nothing was written: {script} cannot be written (Permission denied): it is unchanged."
        )
    script.unlink()
    assert "Nothing was written" in fixed(asked, PLAN)["summary"]


def test_a_notebook_s_cell_is_fixed_in_the_notebook(tmp_path):
    path = tmp_path / "train.ipynb"
    path.write_text(
        '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code", "metadata": {},'
        ' "outputs": [], "execution_count": null, "source": ["import smdistributed.modelparallel.torch as smp\\n",'
        ' "print(smp.rank())"]}]}'
    )
    shown = checked(str(path), PLAN)
    (finding,) = shown["findings"]
    assert finding["place"] == f"{path}#cell-1:2"
    after = fixed(request(path, shown, finding, in_place=True), PLAN)
    assert "smp.init()\\nprint" in path.read_text() or '"smp.init()\\n"' in path.read_text()
    assert after["findings"] == []
