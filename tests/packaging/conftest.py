"""The distributions, built once, and an environment that holds nothing but the wheel and what it asks for."""

import os
import sys
import venv
from pathlib import Path

import pytest

from .sources import run


@pytest.fixture(scope="session")
def tools() -> str:
    """The folder of this Python and of the build tools beside it: as a whole PATH, one without Node."""
    return str(Path(sys.executable).parent)


@pytest.fixture(scope="session")
def sdist(root: Path, tools: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, from the front end that is built, or with one built for it."""
    folder = tmp_path_factory.mktemp("sdist")
    path = os.pathsep.join([tools, os.environ["PATH"]])
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder, ".", cwd=root, path=path)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def wheel(sdist: Path, tools: str) -> Path:
    """The wheel, from the source distribution, on a machine without Node."""
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", "."]
    run(sys.executable, "-m", "pip", "wheel", *options, sdist, cwd=sdist.parent, path=tools)
    return next(sdist.parent.glob("*.whl"))


@pytest.fixture(scope="session")
def clean_environment(root: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and its dependencies, installed by the command of the README."""
    folder = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    # The pip of this environment: installing one takes longer than the wheel.
    options = ["--quiet", "--no-compile", "--constraint", root / "constraints.txt"]
    pip = [sys.executable, "-m", "pip", "--python", python]
    folders = ["--find-links", wheel.parent]
    run(*pip, "install", *options, "smp-advisor", *folders, cwd=folder, path=str(python.parent))
    return folder
