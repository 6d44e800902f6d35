"""Find the files of a project that call a class of one of its modules, by their text."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from smp_advisor.files import SCRIPT, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["files_that_call"]

_ROOTS = (".git", "pyproject.toml", "setup.py")
_MOST_FILES = 500
_MOST_FOLDERS_UP = 4
_MOST_CALLERS = 3


def files_that_call(file: Path, name: str) -> list[str]:
    """At most three files of the project that import a class of `file` by its name and call it.

    Parameters
    ----------
    file
        Module that defines the class. The project is the nearest folder above it with ``.git``, ``pyproject.toml`` or
        ``setup.py``; without one, the folder of the file.
    name
        Name of the class.

    Returns
    -------
    list of str
        Paths relative to the project, in order.
    """
    above = file.resolve().parents[:_MOST_FOLDERS_UP]
    root = next((folder for folder in above if any((folder / mark).exists() for mark in _ROOTS)), above[0])
    pattern = re.compile(
        rf"^[ \t]*from[ \t]+[\w.]*\b{re.escape(file.stem)}[ \t]+import\b[^\n]*\b{re.escape(name)}\b", re.MULTILINE
    )
    callers = []
    for path in sorted(islice(root.rglob("*.py"), _MOST_FILES)):
        if path == file.resolve() or any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        try:
            text = read_bytes(path, SCRIPT).decode(errors="replace")
        except OSError:
            continue
        if pattern.search(text) and f"{name}(" in text:
            callers.append(path.relative_to(root).as_posix())
    return callers[:_MOST_CALLERS]
