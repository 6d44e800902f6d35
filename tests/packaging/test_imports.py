"""What a first use needs, the first use imports: neither the import nor the extension's loading waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("boto3", "libcst", "sagemaker", "torch", "transformers")

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
        pytest.param(LOAD, HEAVY, id="load_ext"),
        # Only a script of the user's has its kind of code read, by the checker.
        pytest.param("from smp_advisor import advise", ("smp_advisor.reading", "smp_advisor.scripts"), id="advise"),
    ],
)
def test_heavy_packages_are_not_imported(root, action, absent):
    code = f"{action}\nimport sys; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, text=True, capture_output=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
