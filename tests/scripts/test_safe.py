"""The checker in a folder of somebody else: nothing there is imported, and no file is lost."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from smp_advisor.command.__main__ import main
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.checks import checked, fixed
from smp_advisor.review.scripts import apply_fixes
from tests.notebook.test_panels import fixes_of, request
from tests.scripts import samples

BROKEN = samples.PIPELINE.replace(", drop_last=True", "")
PLAN = samples.PIPELINE_PLAN
NUMBERS = ["--microbatches", "4", "--pipeline-parallel-degree", "2"]
PLANTED = (
    *("__future__", "argparse", "ast", "dataclasses", "difflib", "json", "numpy", "pathlib"),
    *("tempfile", "tokenize", "tomllib", "typing", "yaml"),
)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "checked" / "train.py"
    path.parent.mkdir()
    path.write_text(BROKEN)
    return path


def plant(folder: Path, *names: str) -> Path:
    marker = folder.parent / "marker"
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r} + ' ')\n")
    return marker


def command(folder: Path, root: Path) -> list[str]:
    """The console script, as installers write it."""
    module, _, function = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"][
        "smp-advisor-check"
    ].partition(":")
    path = folder / "smp-advisor-check"
    path.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return [sys.executable, str(path)]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["console script", "-m", "-P -m"])
def test_no_module_of_the_checked_folder_is_imported(script, tmp_path, root, form):
    forms = {
        "console script": command(tmp_path, root),
        "-m": [sys.executable, "-m", "smp_advisor.command", "check"],
        "-P -m": [sys.executable, "-P", "-m", "smp_advisor.command", "check"],
    }
    # With `-m`, Python itself looks for these in the working directory before any code of the package runs.
    marker = plant(script.parent, *PLANTED, *(["smp_advisor", "importlib", "contextlib"] if form != "-m" else []))
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [*forms[form], "train.py", *NUMBERS, "--fix"],
        cwd=script.parent,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert not marker.exists(), marker.read_text()
    assert done.returncode == 0, done.stderr
    assert script.read_text() == samples.PIPELINE


def test_the_planted_modules_are_noticed_where_python_imports_them(script, root):
    marker = plant(script.parent, "difflib")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    code = "import sys; from smp_advisor.command.__main__ import check; check()"
    subprocess.run([sys.executable, "-c", code, "train.py", *NUMBERS], cwd=script.parent, env=environment, check=False)
    assert marker.exists()


def test_other_programs_keep_their_folder(script, root):
    package = script.parent / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("import smp_advisor, local\n")
    (package / "__main__.py").write_text("import local\n")
    (script.parent / "local.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-m", "trainer"], cwd=script.parent, env=environment, check=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mode", [0o755, 0o640])
def test_files_keep_their_mode(script, mode):
    script.chmod(mode)
    copy = apply_fixes(script, plan=PLAN)
    apply_fixes(script, in_place=True, plan=PLAN)
    assert script.read_text() == samples.PIPELINE
    for path in (script, copy, script.with_name("train.py.bak")):
        assert path.stat().st_mode & 0o777 == mode
    assert names(script.parent) == ["train.fixed.py", "train.py", "train.py.bak"]


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling link"])
def test_a_copy_never_overwrites_what_is_there(script, tmp_path, kind):
    copy, elsewhere = script.with_name("train.fixed.py"), tmp_path / "elsewhere.py"
    if kind == "folder":
        copy.mkdir()
    elif kind == "file":
        copy.write_text("mine")
    else:
        copy.symlink_to(elsewhere)
    if kind == "link":
        elsewhere.write_text("mine")
    before = names(tmp_path)
    with pytest.raises(AdvisorError, match=r"train\.fixed\.py exists and is not overwritten: rename or delete it"):
        apply_fixes(script, plan=PLAN)
    assert names(tmp_path) == before
    assert names(script.parent) == ["train.fixed.py", "train.py"]
    assert kind not in ("file", "link") or copy.read_text() == "mine"


def test_a_copy_by_the_tool_is_replaced(script):
    copy = apply_fixes(script, plan=PLAN)
    assert apply_fixes(script, plan=PLAN) == copy
    script.write_text("# a comment\n" + BROKEN)
    assert apply_fixes(script, plan=PLAN).read_text() == "# a comment\n" + samples.PIPELINE
    copy.write_text("edited")
    with pytest.raises(AdvisorError, match="exists and is not overwritten"):
        apply_fixes(script, plan=PLAN)
    assert copy.read_text() == "edited"


def test_a_link_stays_a_link_and_backups_are_kept(script, tmp_path):
    target = tmp_path / "real.py"
    script.rename(target)
    script.symlink_to(target)
    script.with_name("train.py.bak").symlink_to(tmp_path / "nowhere")
    script.with_name("train.py.bak1").write_text("older")
    assert apply_fixes(script, in_place=True, plan=PLAN) == script
    assert script.is_symlink()
    assert target.read_text() == samples.PIPELINE
    assert script.with_name("train.py.bak1").read_text() == "older"
    assert script.with_name("train.py.bak2").read_text() == BROKEN
    assert names(tmp_path) == ["checked", "real.py"]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.chmod", "pathlib.Path.replace"])
def test_a_failing_write_leaves_the_original(script, monkeypatch, in_place, call):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    if not in_place and call.endswith("replace"):  # only a copy that is written again is replaced
        apply_fixes(script, plan=PLAN)
        script.write_text("# a comment\n" + BROKEN)
    before = {path: path.read_bytes() for path in script.parent.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(call, full)
        with pytest.raises(AdvisorError, match=r"train\.py cannot be written \(No space left on device\): it is unch"):
            apply_fixes(script, in_place=in_place, plan=PLAN)
    assert {path: path.read_bytes() for path in script.parent.iterdir()} == before


@pytest.mark.parametrize("room", [-1, 0], ids=["backup", "fix"])
def test_a_file_that_cannot_grow_leaves_the_original(script, room):
    script.write_text(BROKEN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(BROKEN) + room, hard))  # a write stops in the middle
    try:
        with pytest.raises(AdvisorError, match="File too large"):
            apply_fixes(script, in_place=True, plan=PLAN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert script.read_text() == BROKEN
    assert names(script.parent) == ["train.py"]


def test_the_command_and_the_panel_report_a_failing_write(script, capsys, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    text = "import smdistributed.modelparallel.torch as smp\nprint(smp.rank())\n"
    script.write_text(text)
    shown = checked(str(script), PLAN)
    monkeypatch.setattr("pathlib.Path.replace", full)
    assert main(["check", str(script), *NUMBERS, "--fix"]) == 2
    assert f"{script} cannot be written (No space left on device): it is unchanged." in capsys.readouterr().err
    (fix,) = (fix for fix in fixes_of(shown) if fix[0][1] == "SMP101")
    after = fixed(request(script, fix, in_place=True), PLAN)
    assert after["summary"].startswith(f"Nothing was written: {script} cannot be written (No space left on device)")
    assert script.read_text() == text
    assert names(script.parent) == ["train.py"]
