"""What the package imports is what its metadata asks for, or what it can do without."""

from __future__ import annotations

import ast
import sys
import tomllib

import pytest

# Imported where they are present: Accelerate's and transformers' objects are recognised, ipykernel brings psutil, and
# either SageMaker SDK brings boto3; without it, one sentence says what to install.
DISPENSABLE = {"accelerate", "boto3", "botocore", "psutil", "transformers"}


CALLED = {"pyyaml": "yaml"}


@pytest.fixture
def declared(root) -> set[str]:
    """Import names; the distributions behind them are called the same, but for their case and those in `CALLED`."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {line.partition(">")[0] for line in asked}
    return {CALLED.get(name, name) for name in names}


@pytest.mark.slow
def test_every_import_is_declared(root, declared):
    imported = {name.lower() for file in (root / "smp_advisor").rglob("*.py") for name in imports(file.read_text())}
    assert imported - declared - DISPENSABLE - set(sys.stdlib_module_names) - {"smp_advisor"} == set()


def imports(source: str) -> set[str]:
    """The top-level names of a module's absolute imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).partition(".")[0])
    return names
