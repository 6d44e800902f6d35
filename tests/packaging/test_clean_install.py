"""The wheel on a machine without Node, in an environment with nothing else."""

from pathlib import Path

import pytest

from smp_advisor._version import __version__

from .sources import run

pytestmark = [pytest.mark.packaging, pytest.mark.release]  # `test_wheel` has the names of its files


@pytest.fixture(scope="module")
def python(clean_environment: Path) -> Path:
    return clean_environment / "bin" / "python"


def test_the_installed_package_is_complete_and_has_every_public_name(python, clean_environment):
    code = """
import importlib.metadata, smp_advisor as smpa
print(smpa.__file__, importlib.metadata.version("smp-advisor"), all(hasattr(smpa, name) for name in smpa.__all__))
"""
    where, *rest = run(python, "-c", code, cwd=clean_environment, path=str(python.parent)).split()
    assert Path(where).is_relative_to(clean_environment)
    assert rest == [__version__, "True"]
    assert (Path(where).parent / "static" / "widget.js").is_file()
    assert (clean_environment / "share/jupyter/labextensions/smp-advisor/install.json").is_file()


def test_the_extension_loads_and_advises(python, clean_environment):
    code = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "smp_advisor")
advice = shell.run_line_magic("smp_advise", "10B --instance ml.p4d.24xlarge --count 16")
print(advice.plan)
"""
    assert "Plan(" in run(python, "-c", code, cwd=clean_environment, path=str(python.parent))


def test_the_command_answers(python, clean_environment):
    folder = {"cwd": clean_environment, "path": str(python.parent)}
    assert run(python.parent / "smp-advisor", "--version", **folder) == f"smp-advisor {__version__}\n"
    request = ["fits", "350M", "--instance", "ml.p4d.24xlarge", "--library", "ddp", "--sequence-length", "512"]
    assert "fits" in run(python.parent / "smp-advisor", *request, **folder)


def test_the_checker_is_a_command(python, clean_environment):
    (clean_environment / "json.py").write_text("raise SystemExit('imported from the checked folder')")
    (clean_environment / "train.py").write_text("print(1)\n")
    run(python.parent / "smp-advisor-check", "train.py", cwd=clean_environment, path=str(python.parent))
    (clean_environment / "json.py").unlink()
