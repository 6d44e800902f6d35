"""The user's own file and line in what a child wrote or raised."""

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

__all__ = ["Place", "Trace", "is_dump", "place_of", "trace_in_log", "without_rank"]

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<comma>,?) in ')
"""A line of a traceback (``, in f``), or of faulthandler's dump (`` in f``), which starts at the innermost frame."""
_RANK = re.compile(r"^\[[a-z]+\d+\]:")
"""With which torchrun marks the lines of each process."""
_STARTS = ("Traceback (most recent call last)", "Current thread ", "Thread ", "Stack (most recent call first)")

_CHILD = str(Path(__file__).with_name("child.py"))
_DUMP = ("Fatal Python error: ", "Current thread ", "Thread ", "Stack (most recent call first)", "Extension modules: ")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, or of a notebook's cell."""

    file: str
    line: int

    @property
    def source(self) -> str:
        """The line's text, without its indentation; empty where it cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        name = _cell_name(self.file)
        where = f"line {self.line} of {name}" if name else f"{self.file}:{self.line}"
        return f"{where} (`{self.source}`)" if self.source else where


def place_of(frames: Sequence[tuple[str, int]]) -> Place | None:
    """Innermost of the frames (outermost first) that is the user's own; else the innermost of any library."""
    if not frames:
        return None
    for index in reversed(range(len(frames))):
        file, line = frames[index]
        # A text that a library has run is the library's: dataclasses write their methods so.
        made_up = file == "<string>" and index > 0 and not _is_own(frames[index - 1][0])
        if _is_own(file) and not made_up:
            return Place(file, line)
    return None


@dataclass(frozen=True, slots=True)
class Trace:
    """The last traceback of a log that passes through the user's code."""

    place: Place
    exception: str
    """The line below the frames, ``KeyError: 'x'``; empty for a dump of a crash."""


def trace_in_log(lines: Iterable[str]) -> Trace | None:
    """The user's line, and what was raised, in the last traceback or dump of a crash that a log holds.

    What a launcher adds about itself is passed over: its tracebacks hold none of the user's frames.
    """
    found: Trace | None = None
    frames: list[tuple[str, int]] = []
    innermost_first = outside = False
    for line in (without_rank(one) for one in lines):
        frame = _FRAME.match(line)
        if line.lstrip().startswith(_STARTS):
            frames, outside = [], False
        elif frame is not None:
            innermost_first = not frame["comma"]
            # Further out is only what the kernel was doing when the child was forked.
            outside = outside or (innermost_first and frame["file"] == _CHILD)
            if not outside:
                frames.append((frame["file"], int(frame["line"])))
            place = place_of(frames[::-1] if innermost_first else frames)
            found = Trace(place, "") if place is not None else found
        elif frames and line and not line[0].isspace():
            place = None if innermost_first else place_of(frames)
            found = Trace(place, line.strip()) if place is not None else found
            frames = []
    return found


def without_rank(line: str) -> str:
    """A line without the mark of the process that wrote it."""
    return _RANK.sub("", line)


def is_dump(line: str) -> bool:
    """Whether a line belongs to faulthandler's dump, whose frames are ours above the user's."""
    found = _FRAME.match(line)
    return (found is not None and not found["comma"]) or line.startswith(_DUMP)


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
    """``cell [3]``, where a file is really one of the notebook's cells."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return f"cell [{names[file]}]" if file in names else None
