"""Running a program, such as the user's own script, in a child process."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.sandbox import limits as bounds
from smp_advisor.profiling.sandbox.child import redirect
from smp_advisor.profiling.sandbox.failure import failed
from smp_advisor.profiling.sandbox.following import follow
from smp_advisor.profiling.sandbox.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["ProgramEnd", "run_program"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramEnd:
    """How a program ended."""

    status: int | None
    """Its exit status; None where it was ended."""
    seconds: float
    peak_bytes: int
    """Most memory that it and all it started held together, as seen every twentieth of a second."""
    log: tuple[str, ...]
    """Its last lines."""
    error: ProfileError | None
    """What was wrong, None for a program that ended with status 0."""


def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    what: str = "the script",
    limits: Limits | None = None,
    on_line: Callable[[str], None] | None = None,
) -> ProgramEnd:
    """Run a program to its end, with everything it starts under the limits and in one log.

    A program that fails, or that breaks a limit, is reported in what is returned, not raised.

    Parameters
    ----------
    command
        The program and its arguments; no shell reads them.
    cwd, environment
        Where it runs, and its whole environment.
    what
        What is being run, for the error's sentence.
    limits, on_line
        As for `run_isolated`.

    Raises
    ------
    ProfileError
        There is no such program.
    KeyboardInterrupt
        The user stopped it; nothing of it is left by then.
    """
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise ProfileError(f"{command[0]!r} is not a program that can be run here.")
    given = limits or Limits()
    given = replace(given, memory_bytes=given.resolved_memory_bytes())

    def start(log: int, messages: int) -> None:
        del messages
        redirect(log)
        bounds.apply(given)
        os.chdir(cwd)
        # Ignored, as in what a shell starts in the background, it would stay ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(program, [str(word) for word in command], dict(environment))  # noqa: S606

    # Upon SIGINT a Python program says where it was, as after Ctrl-C.
    followed = follow(start, given, forked=False, where=signal.SIGINT, on_line=on_line)
    end, status = followed.end, followed.end.get("status")
    error = None
    if status != 0 or end.get("breach") is not None:
        error = failed(what, followed, given)
    return ProgramEnd(
        status=status,
        seconds=end.get("seconds", 0.0),
        peak_bytes=end.get("peak_bytes", 0),
        log=tuple(followed.log),
        error=error,
    )
