"""Time the path of a new user: ``python scripts/new_user.py``, from a clone to a job that a mock of AWS accepts.

The path is that of the README, in a new folder, with nothing of this environment: clone, build the wheel, install it
with the SDK of SageMaker into a new environment, run the ten lines, and run the two cells that they return as they are.
The mock of AWS runs outside of that environment, which reaches it by environment variables alone. It needs git, Node,
npm and a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
# The mock of AWS is that of the tests. Some installed packages also contain a `tests` package.
sys.modules["tests"] = ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.moto_harness.proxy import mock_account  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_SECONDS = 600
CELLS = """
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell(Path("ten_lines.py").read_text()).raise_error()
"""
JOB = """
for name in ("script", "cell"):
    shell.run_cell(shell.user_ns[name]).raise_error()
"""


def ten_lines(readme: str) -> str:
    """The Python block of the README."""
    return re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]  # type: ignore[index]


def run(*command: str | Path, folder: Path, **variables: str) -> None:
    """Run a command of the user, without the variables of this environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "AWS_"))}
    done = subprocess.run(command, cwd=folder, env=kept | variables, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))[:200]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def walk(folder: Path) -> dict[str, Any]:
    """Take the path in `folder`, print the seconds of each step, and return the job in the account."""
    clone, python = folder / "smp_advisor", folder / "environment" / "bin" / "python"
    total = 0.0

    def step(title: str, action: Callable[[], object]) -> None:
        nonlocal total
        start = time.monotonic()
        action()
        seconds = time.monotonic() - start
        total += seconds
        print(f"{seconds:6.1f} s  {title}", flush=True)

    pip = [python, "-m", "pip", "--quiet", "install"]
    work = folder / "work"
    work.mkdir()
    step("git clone", lambda: run("git", "clone", "--quiet", ROOT, clone, folder=folder))
    step("new environment", lambda: venv.create(folder / "environment", with_pip=True))
    step("python -m pip install build", lambda: run(*pip, "build", folder=clone))
    step("python -m build --wheel", lambda: run(python, "-m", "build", "--wheel", folder=clone))
    wheel = "smp-advisor[sagemaker]"
    step(f"pip install '{wheel}' --find-links dist", lambda: run(*pip, wheel, "--find-links", "dist", folder=clone))
    (work / "ten_lines.py").write_text(ten_lines((clone / "README.md").read_text("utf-8")))
    step("the ten lines of the README", lambda: run(python, "-c", CELLS, folder=work))
    with mock_account() as account:
        step(
            "the ten lines again, and the cells that they return, with an account",
            lambda: run(python, "-c", CELLS + JOB, folder=work, **account.environment),
        )
        jobs = account.jobs()
    if len(jobs) != 1:
        sys.exit(f"The account has {len(jobs)} jobs instead of one.")
    print(f"{total:6.1f} s  in total, at most {LIMIT_SECONDS} s are allowed")
    if total > LIMIT_SECONDS:
        sys.exit("The path takes too long.")
    return jobs[0]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory(prefix="new_user_") as folder:
        job = walk(Path(folder))
    resources = job["ResourceConfig"]
    print(f"The account has {job['TrainingJobName']} on {resources['InstanceCount']} x {resources['InstanceType']}.")


if __name__ == "__main__":
    main()
