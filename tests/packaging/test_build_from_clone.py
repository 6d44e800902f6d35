"""A wheel from a tree with nothing built: hatch builds the front end with the locked packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .sources import files_of, run

# The front end of the suite is built by the same hook, and the wheel of the sdist is opened in `test_wheel`.
pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.release]


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Path:
    """A copy of every file that git does not ignore, and the front end's packages, so that npm finds them installed."""
    folder = tmp_path / "a folder" / "of another depth"
    for name in files_of(root):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, folder / name)
    packages = folder / "js/node_modules"
    packages.mkdir()
    # Hard links where the file system can, since the packages are half a gigabyte; `cp` is faster than shutil.
    command = ["cp", "--archive", f"{root}/js/node_modules/.", packages]
    if subprocess.run([*command, "--link"], capture_output=True, check=False).returncode:
        subprocess.run(command, check=True)
    return folder


def test_the_wheel_of_a_clone_is_that_of_the_sdist(clone, wheel, tools):
    path = os.pathsep.join([tools, os.environ["PATH"]])
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "dist", ".", cwd=clone, path=path)
    assert next((clone / "dist").glob("*.whl")).read_bytes() == wheel.read_bytes()
