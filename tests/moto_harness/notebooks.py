"""What notebook cells send to AWS, found out in a child process under a mock of it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ENVIRONMENTS", "run_notebooks"]

_HERE = Path(__file__).parent
ENVIRONMENTS = tuple(sorted(path.stem for path in (_HERE / "environments").glob("v*.txt")))
"""The oldest and newest SageMaker SDK of each major version; `scripts/sdk_environments.sh` makes them."""


@dataclass(frozen=True)
class _Child:
    """A process that has imported an SDK and runs notebooks."""

    process: subprocess.Popen[str]
    folder: Path

    @classmethod
    def start(cls, environment: str) -> _Child:
        python = _HERE.parents[1] / ".venv-sdk" / environment / "bin" / "python"
        if not python.exists():
            raise RuntimeError(f"{python} is missing: run scripts/sdk_environments.sh .venv-test/bin/python")
        folder = Path(tempfile.mkdtemp(prefix="cells-"))
        # SDK defaults of the user or the machine do not apply to the cells.
        defaults = {"XDG_CONFIG_HOME": str(folder), "XDG_CONFIG_DIRS": str(folder)}
        with (folder / "errors.txt").open("w") as errors:
            process = subprocess.Popen(
                [python, _HERE / "cells.py"],
                env=os.environ | defaults | {"SAGEMAKER_SUPPRESS_V2_WARNING": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        child = cls(process, folder)
        atexit.register(child.stop)
        return child

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, notebooks: dict[str, list[str]]) -> dict[str, dict]:
        cells, results = self.folder / "notebooks.json", self.folder / "results.json"
        cells.write_text(json.dumps(notebooks))
        request = f"{cells}\t{results}\n"
        self.process.stdin.write(request)
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line == request:
                return json.loads(results.read_text())
        raise RuntimeError(f"the cells' process ended early:\n{(self.folder / 'errors.txt').read_text()[-4000:]}")


_child = cache(_Child.start)


def run_notebooks(notebooks: dict[str, list[str]], environment: str = "v2-newest") -> dict[str, dict]:
    """Run notebooks (cells by name), each on its own; see `cells.py` for their results.

    One child process per SDK runs all of them: importing an SDK takes longer than a cell. It ends with this process.
    """
    return _child(environment).run(notebooks)
