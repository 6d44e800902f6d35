"""What the package imports: declared, and not before its first use."""

import ast
import subprocess
import sys
import tomllib

import pytest

from tests.sources import trees

HEAVY = ("boto3", "sagemaker", "torch", "transformers")

# A shell as bare as IPython makes it. It says what was imported, and nothing else may print.
LOAD = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().run_line_magic("load_ext", "smp_advisor")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "absent"),
    [
        pytest.param("import smp_advisor", (*HEAVY, "pandas", "ipywidgets"), id="import"),
        pytest.param(LOAD, (*HEAVY, "pandas", "ipywidgets", "anywidget"), id="load_ext"),
        pytest.param("import smp_advisor.runs, smp_advisor.notebook.run_magics", (*HEAVY, "pandas"), id="runs"),
        pytest.param("import smp_advisor.libraries, smp_advisor.cluster", (*HEAVY, "pandas", "numpy"), id="libraries"),
        # Only a script of the user's has its kind of code read, by the checker.
        pytest.param("from smp_advisor import advise", ("smp_advisor.review",), id="advise"),
    ],
)
def test_heavy_packages_are_not_imported(root, action, absent):
    code = f"{action}\nimport sys; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, text=True, capture_output=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# Imported where they are present: Accelerate's and transformers' objects are recognised, ipykernel brings psutil, and
# either SageMaker SDK brings boto3; without it, one sentence says what to install. A rehearsal of a script that imports
# datasets, images or saved tensors uses their packages.
DISPENSABLE = {
    "accelerate",
    "boto3",
    "botocore",
    "datasets",
    "peft",
    "pil",
    "psutil",
    "safetensors",
    "tokenizers",
    "transformers",
}


CALLED = {"pyyaml": "yaml"}


@pytest.fixture
def declared(root) -> set[str]:
    """Import names; the distributions behind them are called the same, but for their case and those in `CALLED`."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {line.partition(">")[0] for line in asked}
    return {CALLED.get(name, name) for name in names}


@pytest.mark.slow
def test_every_import_is_declared(declared):
    imported = {name.lower() for tree in trees().values() for name in imports(tree)}
    assert imported - declared - DISPENSABLE - set(sys.stdlib_module_names) - {"smp_advisor"} == set()


def imports(tree: ast.Module) -> set[str]:
    """The top-level names of a module's absolute imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).partition(".")[0])
    return names
