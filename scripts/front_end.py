"""The build hook of the distributions: builds the front end with the locked packages where none is built."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build(_target: str, _version: str) -> None:
    """Build as the environments do; hatch's own function would run `npm install`, which may change the lock file."""
    subprocess.run([Path(__file__).with_name("frontend.sh")], check=True)
