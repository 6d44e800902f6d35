"""The checker in a folder of somebody else: nothing there is imported, and no file is lost."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.rows import rows
from tests.scripts import samples

BROKEN = samples.PIPELINE.replace(", drop_last=True", "")
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
@pytest.mark.parametrize("form", rows(["console script", "-m", "-P -m"], "-P -m"))  # which is safer than -m
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
        [*forms[form], "train.py", *NUMBERS],
        cwd=script.parent,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert not marker.exists(), marker.read_text()
    assert done.returncode == 1, done.stderr


def test_other_programs_keep_their_folder(script, root):
    package = script.parent / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("import smp_advisor, local\n")
    (package / "__main__.py").write_text("import local\n")
    (script.parent / "local.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-m", "trainer"], cwd=script.parent, env=environment, check=True)
