"""Run a build tool, with a PATH that the test chooses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run(*command: str | Path, cwd: Path, path: str) -> str:
    """Run a command with `path` as its PATH; what it prints, or a failure that says what it printed."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | {"PATH": path}, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
