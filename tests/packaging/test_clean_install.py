"""The wheel on a machine without Node, in an environment with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from smp_advisor._version import __version__

from .commands import run

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def python(clean_environment: Path) -> Path:
    return clean_environment / "bin" / "python"


def test_the_installed_package_is_complete(python, clean_environment):
    code = "import importlib.metadata as m, smp_advisor; print(smp_advisor.__file__, m.version('smp-advisor'))"
    where, version = run(python, "-c", code, cwd=clean_environment, path=str(python.parent)).split()
    assert Path(where).is_relative_to(clean_environment)
    assert version == __version__
    assert (Path(where).parent / "static" / "widget.js").is_file()
    assert (clean_environment / "share/jupyter/labextensions/smp-advisor/install.json").is_file()


def test_it_advises(python, clean_environment):
    code = "import smp_advisor as smpa; print(smpa.advise('10B', 'ml.p4d.24xlarge', instance_count=16).plan)"
    assert "Plan(" in run(python, "-c", code, cwd=clean_environment, path=str(python.parent))


def test_the_checker_is_a_command(python, clean_environment):
    (clean_environment / "json.py").write_text("raise SystemExit('imported from the checked folder')")
    (clean_environment / "train.py").write_text("print(1)\n")
    run(python.parent / "smp-advisor-check", "train.py", cwd=clean_environment, path=str(python.parent))
    (clean_environment / "json.py").unlink()


def test_every_public_name_is_there(python, clean_environment):
    code = "import smp_advisor as smpa; [getattr(smpa, name) for name in smpa.__all__]"
    run(python, "-c", code, cwd=clean_environment, path=str(python.parent))
