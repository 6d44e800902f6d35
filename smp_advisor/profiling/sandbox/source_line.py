"""The user's file and line in a traceback or log of a child process."""

from __future__ import annotations

import linecache
import re
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LoggedError", "SourceLine", "is_dump", "last_error_in_log", "user_source_line", "without_rank"]

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<comma>,?) in ')
"""A frame in a traceback (``, in f``), or in faulthandler's dump (`` in f``), which starts with the innermost frame."""
_RANK = re.compile(r"^\[[a-z]+\d+\]:")
"""Prefix that torchrun adds to the lines of each process."""
_STARTS = ("Traceback (most recent call last)", "Current thread ", "Thread ", "Stack (most recent call first)")

_CHILD = str(Path(__file__).with_name("child.py"))
_DUMP = ("Fatal Python error: ", "Current thread ", "Thread ", "Stack (most recent call first)", "Extension modules: ")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file or of a notebook cell."""

    file: str
    line: int

    @property
    def source(self) -> str:
        """Text of the line without indentation; empty if it cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        name = _cell_name(self.file)
        location = f"line {self.line} of {name}" if name else f"{self.file}:{self.line}"
        return f"{location} (`{self.source}`)" if self.source else location


def user_source_line(frames: Sequence[tuple[str, int]]) -> SourceLine | None:
    """Innermost frame of the user's own code, or None; frames are outermost first."""
    if not frames:
        return None
    for index in reversed(range(len(frames))):
        file, line = frames[index]
        # Source text executed by a library, such as a dataclass method, belongs to the library.
        is_generated = file == "<string>" and index > 0 and not _is_own(frames[index - 1][0])
        if _is_own(file) and not is_generated:
            return SourceLine(file, line)
    return None


@dataclass(frozen=True, slots=True)
class LoggedError:
    """The last traceback in a log with a frame of the user's code."""

    source_line: SourceLine
    exception: str
    """The line after the frames, such as ``KeyError: 'x'``; empty for the stack dump of a crash."""


def last_error_in_log(lines: Iterable[str]) -> LoggedError | None:
    """The user's source line and the exception of the last traceback or stack dump in a log.

    Tracebacks of a launcher contain no frames of the user's code and are ignored.
    """
    last: LoggedError | None = None
    frames: list[tuple[str, int]] = []
    innermost_first = outside = False
    for line in map(without_rank, lines):
        frame = _FRAME.match(line)
        if line.lstrip().startswith(_STARTS):
            frames, outside = [], False
        elif frame is not None:
            innermost_first = not frame["comma"]
            # Outer frames belong to the kernel from before the fork.
            outside = outside or (innermost_first and frame["file"] == _CHILD)
            if not outside:
                frames.append((frame["file"], int(frame["line"])))
            source_line = user_source_line(frames[::-1] if innermost_first else frames)
            last = LoggedError(source_line, "") if source_line is not None else last
        elif frames and line and not line[0].isspace():
            source_line = None if innermost_first else user_source_line(frames)
            last = LoggedError(source_line, line.strip()) if source_line is not None else last
            frames = []
    return last


def without_rank(line: str) -> str:
    """A log line without torchrun's prefix for the process that wrote it."""
    return _RANK.sub("", line)


def is_dump(line: str) -> bool:
    """Whether a line belongs to a stack dump by faulthandler."""
    frame = _FRAME.match(line)
    return (frame is not None and not frame["comma"]) or line.startswith(_DUMP)


def _is_own(file: str) -> bool:
    if file.startswith("<"):
        return "ipython-input" in file or file == "<string>"
    path = Path(file)
    return not any(path.is_relative_to(folder) for folder in _libraries())


def _libraries() -> list[Path]:
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sys.prefix, sys.base_prefix + "/lib"}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {str(Path(__file__).parents[2])}  # this package
    return [Path(folder) for folder in folders if folder]


def _cell_name(file: str) -> str | None:
    """``cell [3]`` if the file is a notebook cell, else None."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return f"cell [{names[file]}]" if file in names else None
