"""What notebook cells send to AWS, found out in a child process under a mock of it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

__all__ = ["ENVIRONMENTS", "run_notebooks"]

_HERE = Path(__file__).parent
ENVIRONMENTS = tuple(sorted(path.stem for path in (_HERE / "environments").glob("v*.txt")))
"""The oldest and newest SageMaker SDK of each major version; `scripts/sdk_environments.sh` makes them."""


def run_notebooks(
    notebooks: dict[str, list[str]], environment: str = "v2-newest", *, timeout_seconds: float = 280
) -> dict[str, dict]:
    """Run notebooks (cells by name), each on its own; see `cells.py` for what comes back.

    One child process runs all of them: importing the SageMaker SDK takes longer than a cell.
    """
    python = _HERE.parents[1] / ".venv-sdk" / environment / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"{python} is missing: run scripts/sdk_environments.sh .venv-test/bin/python")
    program = _HERE / "cells.py"
    with tempfile.TemporaryDirectory() as directory:
        given, answer = Path(directory, "notebooks.json"), Path(directory, "results.json")
        given.write_text(json.dumps(notebooks))
        # The SDK's defaults of whoever runs the tests, or of their machine, are no part of what a cell says.
        nobody = {"XDG_CONFIG_HOME": directory, "XDG_CONFIG_DIRS": directory}
        environment = os.environ | nobody | {"SAGEMAKER_SUPPRESS_V2_WARNING": "1"}
        child = subprocess.run(
            [python, program, given, answer],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        if not answer.exists():
            raise RuntimeError(f"the cells' process ended early:\n{child.stderr[-4000:]}")
        return json.loads(answer.read_text())
