"""Files to check: of folders, patterns and the standard input."""

from __future__ import annotations

import glob
import os
import sys
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.arguments import require_path
from smp_advisor.errors import AdvisorError
from smp_advisor.files import SCRIPT
from smp_advisor.reading.source import Source, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["files_of", "standard_input"]

_SUFFIXES = (".py", ".pyw", ".ipynb")
_LEFT_OUT = frozenset(
    ["__pycache__", "__pypackages__", "build", "dist", "env", "node_modules", "site-packages", "venv"]
)
"""Folders without scripts of the project; those with a leading dot are left out, too."""
_MOST_FILES = 10_000


def files_of(paths: Sequence[str], exclude: Sequence[str]) -> list[Path]:
    """Scripts and notebooks of files, folders and patterns, each once, in the order of `paths`.

    A path of a file is taken whatever its name is. In folders, links to folders are not followed.

    Raises
    ------
    AdvisorError
        If a folder or pattern has no script, or they have more than 10,000.
    """
    chosen: dict[Path, Path] = {}
    for text in paths:
        require_path(text, "smp-advisor-check")
        path = Path(text)
        if os.path.isdir(path):  # noqa: PTH112 - pathlib's fails for long names
            files = _limited(_walk(path, exclude), text)
        elif glob.has_magic(text) and not os.path.exists(path):  # noqa: PTH110
            matches = (Path(match) for match in glob.iglob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
            files = _limited((match for match in matches if _is_script(match) and not _excluded(match, exclude)), text)
        else:
            files = [path]
        if not files:
            raise AdvisorError(f"{text} has no script to check: pass a folder or pattern with .py files or notebooks.")
        for file in files:
            target = Path(os.path.realpath(file))
            if os.path.islink(target):  # noqa: PTH114
                raise AdvisorError(f"{file} is a circle of links: pass the path of a file.")
            chosen.setdefault(target, file)
    return list(chosen.values())


def standard_input(name: str) -> Source:
    """The text on the standard input, as the file `name` if there is one; imports are followed from its folder.

    Raises
    ------
    AdvisorError
        If it is not text in UTF-8, or larger than any script.
    """
    raw = sys.stdin.buffer.read(SCRIPT + 1)
    if len(raw) > SCRIPT:
        raise AdvisorError(f"The standard input is larger than {SCRIPT / 1e6:.3g} MB, which no script is.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AdvisorError("The standard input is not text in UTF-8: pass the path of the script instead.") from None
    if name.lower().endswith(".ipynb"):
        raise AdvisorError("A notebook cannot be checked from the standard input: pass its path instead.")
    source = read(text if "\n" in text else f"{text}\n# {name}\n")
    return Source(name or "<stdin>", source.text, Path(name) if name else None)


def _limited(files: Iterator[Path], text: str) -> list[Path]:
    several = sorted(islice(files, _MOST_FILES + 1))
    if len(several) > _MOST_FILES:
        raise AdvisorError(f"{text} has more than {_MOST_FILES:,} scripts: pass the folder of one project.")
    return several


def _walk(folder: Path, exclude: Sequence[str]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _LEFT_OUT and not _excluded(here / name, exclude)
        )
        for name in sorted(names):
            path = here / name
            if _is_script(path) and not _excluded(path, exclude):
                yield path


def _is_script(path: Path) -> bool:
    written = path.stem.endswith(".fixed")  # by apply_fixes
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".") and not written and path.is_file()


def _excluded(path: Path, exclude: Sequence[str]) -> bool:
    text = path.as_posix()
    return any(
        fnmatch(path.name, pattern) or fnmatch(text, pattern) or fnmatch(text, f"*/{pattern.rstrip('/')}")
        for pattern in exclude
    )
