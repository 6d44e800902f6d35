"""Calling a function in a child process."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.sandbox.child import WHERE, live_forked, redirect
from smp_advisor.profiling.sandbox.failure import failed
from smp_advisor.profiling.sandbox.following import follow
from smp_advisor.profiling.sandbox.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_isolated"]

_FRESH = "from smp_advisor.profiling.sandbox.child import live_fresh; live_fresh()"


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
        A function: the child is forked and works on this process's own objects, which it can change without this
        process noticing; nothing is pickled, so classes defined in a notebook are as good as any. Or
        ``"package.module:function"``: the child is a fresh interpreter, which gets the arguments as JSON; for work that
        needs nothing of this process, whose imports then do not grow either, and whose use of a GPU does not matter.
    *arguments
        Of the function.
    what
        What is being done, for the error's sentence.
    limits
        On the child and all it starts.
    on_line, on_progress
        Called with each line that it writes, and with what `progress` reports from within it.

    Returns
    -------
    Any
        What the function returned; it crosses as JSON, so plain data only.

    Raises
    ------
    ProfileError
        One sentence: what ended it, at which of the user's lines, and the last lines that it wrote.
    KeyboardInterrupt
        The user stopped it; nothing of it is left by then.
    """
    bounds = limits or Limits()
    bounds = replace(bounds, memory_bytes=bounds.resolved_memory_bytes())
    if isinstance(target, str):
        request = {"target": target, "arguments": arguments, "limits": asdict(bounds), "path": sys.path}
        text = json.dumps(request)

        def start(log: int, messages: int) -> None:
            _live_fresh(text, log, messages)
    else:
        function = target

        def start(log: int, messages: int) -> None:
            del messages
            live_forked(function, arguments, bounds, log)

    followed = follow(
        start, bounds, forked=not isinstance(target, str), where=WHERE, on_line=on_line, on_progress=on_progress
    )
    if followed.has_result and followed.end.get("breach") is None:
        return followed.result
    raise failed(what, followed, bounds)


def _live_fresh(request: str, log: int, messages: int) -> None:
    """Become a fresh interpreter."""
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
            sys.executable, "-c", _FRESH, str(messages), str(file.fileno()),
        ]  # fmt: skip
        os.execve(sys.executable, program, environment)  # noqa: S606
