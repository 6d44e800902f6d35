"""Running a program, such as the user's script, in a child process."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.sandbox.child import redirect
from smp_advisor.profiling.sandbox.failure import failed
from smp_advisor.profiling.sandbox.limits import Limits, apply
from smp_advisor.profiling.sandbox.monitor import run_monitored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["ProgramEnd", "run_program"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramEnd:
    """Result of running a program."""

    status: int | None
    """Exit status; None if the program was killed."""
    seconds: float
    peak_bytes: int
    """Peak memory of all its processes together, sampled every 0.05 s."""
    log: tuple[str, ...]
    """Last lines of its output."""
    error: ProfileError | None
    """Cause of the failure; None if the program exited with status 0."""


def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    what: str = "the script",
    limits: Limits | None = None,
    enter: Callable[[], None] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> ProgramEnd:
    """Run a program to its end, with limits and one log for it and all its descendants.

    A program that fails or exceeds a limit raises no exception; `ProgramEnd.error` contains the cause.

    Parameters
    ----------
    command
        The program and its arguments; no shell is involved.
    cwd, environment
        Working directory and complete environment.
    what
        Name of the program, for the error's sentence.
    enter
        Called in the child process before the program starts.
    limits, on_line
        As for `run_isolated`.

    Raises
    ------
    ProfileError
        The program does not exist.
    KeyboardInterrupt
        The user interrupted it; all its processes have ended.
    """
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise ProfileError(f"{command[0]!r} is not an executable program on this machine.")
    bounds = limits or Limits()
    bounds = replace(bounds, memory_bytes=bounds.resolved_memory_bytes())

    def start(log: int, messages: int) -> None:
        del messages
        redirect(log)
        if enter is not None:
            try:
                enter()
            except OSError:
                traceback.print_exc()
                os._exit(1)
        apply(bounds)
        os.chdir(cwd)
        # A shell's background jobs ignore SIGINT, and the program would inherit that.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(program, [str(word) for word in command], dict(environment))  # noqa: S606

    # On SIGINT a Python program prints a traceback, as after Ctrl-C.
    report = run_monitored(start, bounds, forked=False, stack_signal=signal.SIGINT, on_line=on_line)
    end, status = report.end, report.end.get("status")
    error = None
    if status != 0 or end.get("breach") is not None:
        error = failed(what, report, bounds)
    return ProgramEnd(
        status=status,
        seconds=end.get("seconds", 0.0),
        peak_bytes=end.get("peak_bytes", 0),
        log=tuple(report.log),
        error=error,
    )
