"""What ended a child, in one sentence."""

from __future__ import annotations

import re
import signal
import traceback
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, ProfileError
from smp_advisor.profiling.sandbox.place import place_of, trace_in_log, without_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.profiling.sandbox.following import Followed
    from smp_advisor.profiling.sandbox.limits import Limits

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
    """An exception as plain data, in the child that raised it."""
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


def failed(what: str, followed: Followed, limits: Limits) -> ProfileError:
    """The error for a child that did not do what it was for.

    Parameters
    ----------
    what
        What was being done: "the model's training step".
    followed
        What was seen of it.
    limits
        Under which it ran.
    """
    failure = followed.failure
    if failure and failure["own"]:
        return ProfileError(failure["text"], kind="error")
    frames = [(file, line) for file, line in failure["frames"]] if failure else []
    trace = trace_in_log(followed.stack) or (None if failure else trace_in_log(followed.log))
    place = place_of(frames) or (trace.place if trace else None)
    at = f" at {place}" if place else ""
    if trace and trace.exception and followed.end.get("breach") is None:
        kind, said = "error", f"failed{at}: {_sentence(trace.exception)}"
    else:
        kind, said = _said(at, failure, followed.end, limits)
    return ProfileError(f"{_capital(what)} {said}", kind=kind, log=_tail(followed.log))


def _said(at: str, failure: dict[str, Any] | None, end: dict[str, Any], limits: Limits) -> tuple[str, str]:
    allowed = f"{limits.resolved_memory_bytes() / 2**30:.3g} GiB"
    breach = end.get("breach")
    if breach == "memory" or (failure and failure["kind"] == "memory"):
        return "memory", f"was stopped{at}: it needed more than the {allowed} of memory it was given."
    if breach == "time":
        return "time", f"was stopped{at}: it did not end within {limits.seconds:g} seconds."
    if breach == "processes":
        return "processes", f"was stopped{at}: it started more than {limits.processes} processes."
    if breach == "output":
        return "output", f"was stopped{at}: it wrote more than {limits.output_bytes / 2**20:.3g} MiB of output."
    if failure and failure["kind"] == "exit":
        code = failure["code"]
        return "exit", f"ended itself{at} with sys.exit({'' if code is None else repr(code)})."
    if failure:
        return "error", f"failed{at}: {_exception(failure)}"
    if end.get("signal") is not None:
        name = signal.Signals(end["signal"]).name
        return "crash", f"crashed{at} ({name}), as faults in compiled code do."
    return "exit", f"ended{at} with status {end.get('status')} before it was done."


def _exception(failure: dict[str, Any]) -> str:
    text = " ".join(failure["text"].split())
    if _FORKED_AUTOGRAD in text or _FORKED_CUDA in text:
        return (
            "this kernel has used the GPU, and a process made from it then cannot: restart the kernel and profile "
            "before anything else runs on the GPU, or pass the model's configuration."
        )
    return _sentence(f"{failure['name']}: {text}".rstrip(": "))


def _sentence(text: str) -> str:
    shortened = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
    return shortened if shortened.endswith((".", "!", "?")) else f"{shortened}."


def _tail(log: Sequence[str]) -> tuple[str, ...]:
    """The last lines; of several processes theirs, without what the launcher adds."""
    own = [line for line in log if without_rank(line) != line] or log
    shown = [line[:_LINE_CHARACTERS] for line in own if without_rank(line).strip()]
    return tuple(shown[-_SHOWN_LINES:])


def _capital(text: str) -> str:
    """At the beginning of a sentence; the name of a file stays as it is."""
    return f"T{text[1:]}" if text.startswith("the ") else text
