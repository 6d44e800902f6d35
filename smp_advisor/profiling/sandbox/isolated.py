"""Calling a function in a child process."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.sandbox.child import STACK_SIGNAL, redirect, run_forked
from smp_advisor.profiling.sandbox.failure import failed
from smp_advisor.profiling.sandbox.limits import Limits
from smp_advisor.profiling.sandbox.monitor import run_monitored

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_isolated"]

_FRESH = "from smp_advisor.profiling.sandbox.child import run_fresh; run_fresh()"


def run_isolated(
    target: Callable[..., Any] | str,
    *arguments: Any,
    what: str = "the profile",
    limits: Limits | None = None,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Any:
    """Call a function in a child process that cannot harm this one.

    Parameters
    ----------
    target
        A function: the child is a fork, which works on copies of this process's objects without pickling, so classes
        defined in a notebook work. Or ``"package.module:function"``: the child is a fresh interpreter, which receives
        the arguments as JSON. Use it for work without this process's objects: this process then needs no additional
        imports, and may have used the GPU.
    *arguments
        Arguments of the function.
    what
        Name of the task, for the error's sentence.
    limits
        Limits of the child process and all its descendants.
    on_line, on_progress
        Called with each line that it writes, and with each report by `progress`.

    Returns
    -------
    Any
        The function's result, which is sent as JSON and must be plain data.

    Raises
    ------
    ProfileError
        The child failed. The sentence states the cause and the user's source line; the last lines of the log follow.
    KeyboardInterrupt
        The user interrupted it; all its processes have ended.
    """
    bounds = limits or Limits()
    bounds = replace(bounds, memory_bytes=bounds.resolved_memory_bytes())
    if isinstance(target, str):
        request = {"target": target, "arguments": arguments, "limits": asdict(bounds), "path": sys.path}
        text = json.dumps(request)

        def start(log: int, messages: int) -> None:
            _exec_fresh(text, log, messages)
    else:
        function = target

        def start(log: int, messages: int) -> None:
            del messages
            run_forked(function, arguments, bounds, log)

    report = run_monitored(
        start,
        bounds,
        forked=not isinstance(target, str),
        stack_signal=STACK_SIGNAL,
        on_line=on_line,
        on_progress=on_progress,
    )
    if report.has_result and report.end.get("breach") is None:
        return report.result
    raise failed(what, report, bounds)


def _exec_fresh(request: str, log: int, messages: int) -> None:
    """Replace this process by a fresh interpreter that executes the request."""
    redirect(log)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.write(request)
        file.flush()
        file.seek(0)
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003
        os.set_inheritable(messages, True)  # noqa: FBT003
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        program = [
            sys.executable, "-P", "-c", _FRESH, str(messages), str(file.fileno()),
        ]  # fmt: skip
        os.execve(sys.executable, program, environment)  # noqa: S606
