"""The files of the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path


def files_of(root: Path) -> set[str]:
    """Every file that git does not ignore; in an unpacked sdist, where git knows none, every file that was packed."""
    if (root / "PKG-INFO").is_file():
        files = (file.relative_to(root) for file in root.rglob("*") if file.is_file())
        return {file.as_posix() for file in files if not built(file) and file.name != "PKG-INFO"}
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.check_output(listing, cwd=root, text=True).split("\0")
    return {name for name in names if name and (root / name).is_file()}


def built(file: Path) -> bool:
    """Whether tools wrote a file of an unpacked sdist."""
    folders = set(file.parts[:-1])
    return bool(folders & {"__pycache__", "labextension", "node_modules", "static"}) or any(
        folder.startswith((".venv", ".pytest", ".hypothesis", ".mypy", ".ruff")) for folder in folders
    )
