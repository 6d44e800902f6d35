"""A wheel from a tree with nothing built: hatch calls npm, and refuses to ship less than the whole front end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .commands import run

pytestmark = [pytest.mark.packaging, pytest.mark.slow]


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Path:
    """A copy of every file that git does not ignore, and the front end's packages, so that npm finds them installed."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in filter(None, subprocess.check_output(listing, cwd=root, text=True).split("\0")):
        if (root / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tmp_path / name)
    shutil.copytree(root / "js/node_modules", tmp_path / "js/node_modules", symlinks=True, copy_function=link)
    return tmp_path


def link(source: str, target: str) -> None:
    """A hard link where the file system can, since the packages are half a gigabyte."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def test_hatch_builds_the_front_end(clone, wheel, tools):
    path = os.pathsep.join([tools, os.environ["PATH"]])
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "dist", ".", cwd=clone, path=path)
    built = next((clone / "dist").glob("*.whl"))
    assert names(built) == names(wheel)


def names(wheel: Path) -> set[str]:
    """The wheel's files; the hash in the name of a chunk varies with the folder it was built in."""
    return {re.sub(r"\.[0-9a-f]{16,20}\.", ".*.", name) for name in zipfile.ZipFile(wheel).namelist()}
