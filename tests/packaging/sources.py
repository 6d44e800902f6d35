"""The files of the repository, and build tools with a PATH that the test chooses."""

import os
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


def run(*command: str | Path, cwd: Path, path: str) -> str:
    """Run a command with `path` as its PATH; what it prints, or a failure that says what it printed."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | {"PATH": path}, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
