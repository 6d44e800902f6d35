"""The cause of a child process's failure, in one sentence."""

from __future__ import annotations

import re
import signal
import traceback
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, ProfileError
from smp_advisor.profiling.sandbox.source_line import last_error_in_log, user_source_line, without_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.profiling.sandbox.limits import Limits
    from smp_advisor.profiling.sandbox.monitor import ChildReport

__all__ = ["describe_exception", "failed"]

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
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    code = error.code if isinstance(error, SystemExit) else None
    text = str(error)
    memory = isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(text))
    kind = "exit" if isinstance(error, SystemExit) else "memory" if memory else "error"
    return {
        "kind": kind,
        "name": type(error).__name__,
        "text": text[:4000],
        "code": code if isinstance(code, int | str) else None,
        "frames": frames,
        "own": isinstance(error, AdvisorError),
    }


def failed(what: str, report: ChildReport, limits: Limits) -> ProfileError:
    """Build the error for a child process that failed.

    Parameters
    ----------
    what
        Name of the task, such as "the model's training step".
    """
    failure = report.failure
    if failure and failure["own"]:
        return ProfileError(failure["text"], kind="error")
    frames = [(file, line) for file, line in failure["frames"]] if failure else []
    logged = last_error_in_log(report.stack) or (None if failure else last_error_in_log(report.log))
    line = user_source_line(frames) or (logged.source_line if logged else None)
    at = f" at {line}" if line else ""
    if logged and logged.exception and report.end.get("breach") is None:
        kind, outcome = "error", f"failed{at}: {_sentence(logged.exception)}"
    else:
        kind, outcome = _outcome(at, failure, report.end, limits)
    return ProfileError(f"{_capitalized(what)} {outcome}", kind=kind, log=_tail(report.log))


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
        return "error", f"failed{at}: {_exception(failure)}"
    if end.get("signal") is not None:
        if end["signal"] == signal.SIGKILL:
            return "killed", (
                f"was killed{at} (SIGKILL), probably by the system because this machine ran out of memory:"
                f" close other programs, or set memory_bytes below the {allowed} of memory it was allowed."
            )
        name = signal.Signals(end["signal"]).name
        return "crash", f"crashed{at} ({name}), which indicates a fault in compiled code."
    return "exit", f"exited{at} with status {end.get('status')} before it was done."


def _exception(failure: dict[str, Any]) -> str:
    text = " ".join(failure["text"].split())
    if _FORKED_AUTOGRAD in text or _FORKED_CUDA in text:
        return (
            "this kernel has used the GPU, so a process forked from it cannot: restart the kernel and profile "
            "before anything else runs on the GPU, or pass the model's configuration."
        )
    return _sentence(f"{failure['name']}: {text}".rstrip(": "))


def _sentence(text: str) -> str:
    shortened = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
    return shortened if shortened.endswith((".", "!", "?")) else f"{shortened}."


def _tail(log: Sequence[str]) -> tuple[str, ...]:
    """Last lines of the log; with several processes, only lines of the processes, not of the launcher."""
    own = [line for line in log if without_rank(line) != line] or log
    lines = [line[:_LINE_CHARACTERS] for line in own if without_rank(line).strip()]
    return tuple(lines[-_SHOWN_LINES:])


def _capitalized(text: str) -> str:
    """Text at the beginning of a sentence; file names are unchanged."""
    return f"T{text[1:]}" if text.startswith("the ") else text
