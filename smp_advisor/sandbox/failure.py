"""The cause of a child process's failure in one sentence, with the user's file and line."""

from __future__ import annotations

import linecache
import re
import signal
import site
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, ProfileError
from smp_advisor.sandbox.limits import ANSWER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smp_advisor.sandbox.limits import Limits
    from smp_advisor.sandbox.supervisor import ChildReport


_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|Cannot allocate memory|std::bad_alloc|out of memory"
)
_FORKED_AUTOGRAD = "Unable to handle autograd's threading in combination with fork"
_FORKED_CUDA = "Cannot re-initialize CUDA in forked subprocess"
_SHOWN_LINES = 8
_LINE_CHARACTERS = 200
_SHOWN_CHARACTERS = 400


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Describe an exception as plain data; called in the child process."""
    frames = [(frame.f_code.co_filename, line or 0) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    code = error.code if isinstance(error, SystemExit) else None
    text = str(error)
    memory = isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(text))
    kind = "exit" if isinstance(error, SystemExit) else "memory" if memory else "error"
    return {
        "kind": kind, "name": type(error).__name__, "text": text[:4000], "frames": frames,
        "code": code if isinstance(code, int | str) else None, "own": isinstance(error, AdvisorError),
    }  # fmt: skip


def failed(what: str, report: ChildReport, limits: Limits) -> ProfileError:
    """Build the error for a child process that failed at a task, such as "the model's training step"."""
    failure, breach = report.failure, report.end.get("breach")
    if failure and failure["own"] and breach is None:
        return ProfileError(failure["text"], kind="error")
    frames = [(file, line) for file, line in failure["frames"]] if failure else []
    logged = last_error_in_log(report.stack) or (None if failure else last_error_in_log(report.log))
    raised, written = user_source_line(frames), logged.source_line if logged else None
    # A child that is stopped may have been handling an exception from earlier lines.
    line = raised or written if breach is None else written or raised
    at = f" at {line}" if line else ""
    if not line and report.end.get("answered") is False:
        at = f" (it did not write where it was within {ANSWER_SECONDS:.0f} seconds)"
    if logged and logged.exception and breach is None:
        kind, outcome = "error", f"failed{at}: {_sentence(logged.exception)}"
    else:
        kind, outcome = _outcome(at, failure, report.end, limits)
    start = f"T{what[1:]}" if what.startswith("the ") else what  # names of files are unchanged
    lines = [line[:_LINE_CHARACTERS] for line in report.log if line.strip()]
    return ProfileError(f"{start} {outcome}", kind=kind, log=tuple(lines[-_SHOWN_LINES:]))


def _outcome(at: str, failure: dict[str, Any] | None, end: dict[str, Any], limits: Limits) -> tuple[str, str]:
    allowed = f"{limits.resolved_memory_bytes() / 2**30:.3g} GiB"
    breach = end.get("breach")
    if breach == "memory" or (failure and failure["kind"] == "memory"):
        return "memory", f"was stopped{at}: it needed more than the {allowed} of memory it was allowed."
    if breach == "time":
        return "time", f"was stopped{at}: it did not end within {limits.seconds:g} seconds."
    if breach == "processes":
        return "processes", f"was stopped{at}: it started more than {limits.processes} processes."
    if breach == "output":
        return "output", f"was stopped{at}: it wrote more than {limits.output_bytes / 2**20:.3g} MiB of output."
    if failure and failure["kind"] == "exit":
        code = failure["code"]
        return "exit", f"exited{at} with sys.exit({'' if code is None else repr(code)})."
    if failure:
        text = " ".join(failure["text"].split())
        if _FORKED_AUTOGRAD in text or _FORKED_CUDA in text:
            return "error", (
                f"failed{at}: this kernel has used the GPU, so a process forked from it cannot: restart the kernel and "
                "profile before anything else runs on the GPU, or pass the model's configuration."
            )
        return "error", f"failed{at}: {_sentence(': '.join(filter(None, (failure['name'], text))))}"
    if end.get("signal") is not None:
        if end["signal"] == signal.SIGKILL:
            return "killed", (
                f"was killed{at} (SIGKILL), probably by the system because this machine ran out of memory:"
                f" close other programs, or set memory_bytes below the {allowed} of memory it was allowed."
            )
        name = signal.Signals(end["signal"]).name
        return "crash", f"crashed{at} ({name}), which indicates a fault in compiled code."
    return "exit", f"exited{at} with status {end.get('status')} before it was done."


def _sentence(text: str) -> str:
    shortened = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
    return shortened if shortened.endswith((".", "!", "?")) else f"{shortened}."


_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<comma>,?) in ')
"""A frame in a traceback (``, in f``), or in faulthandler's dump (`` in f``), which starts with the innermost frame."""
_STARTS = ("Traceback (most recent call last)", "Current thread ", "Thread ", "Stack (most recent call first)")

_CHILD = str(Path(__file__).with_name("isolated.py"))
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
    """Return the user's source line and the exception of the last traceback or stack dump in a log."""
    last: LoggedError | None = None
    frames: list[tuple[str, int]] = []
    innermost_first = outside = False
    for line in lines:
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


def is_dump(line: str) -> bool:
    """Return whether a line belongs to a stack dump by faulthandler."""
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
    folders |= {str(Path(__file__).parents[1])}  # this package
    return [Path(folder) for folder in folders if folder]


def _cell_name(file: str) -> str | None:
    """``cell [3]`` if the file is a notebook cell, else None."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return f"cell [{names[file]}]" if file in names else None
