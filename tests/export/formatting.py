"""Formatting of generated code, that of black: the formatter of ruff writes the same, a hundred times faster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_RUFF = Path(sys.executable).with_name("ruff")


def formatted(source: str) -> str:
    """The source as the formatter writes it, without the options of this project."""
    command = [_RUFF, "format", "--isolated", "--target-version=py311", "-"]
    return subprocess.run(command, input=source.encode(), capture_output=True, check=True).stdout.decode()


def unformatted(folder: Path) -> str:
    """What the formatter would change in the Python files of a folder."""
    command = [_RUFF, "format", "--isolated", "--target-version=py311", "--diff", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
