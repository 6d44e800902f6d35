"""Calling a function in a child process on systems without /proc: macOS, Windows.

The child is a new interpreter. Its memory, processes and output are read from outside, 20 times per second: between two
readings it can exceed a limit, and nothing keeps files or the network away from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from smp_advisor.errors import ProfileError
from smp_advisor.sandbox import supervisor
from smp_advisor.sandbox.failure import describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.sandbox.limits import Limits

_PROGRAM = "from smp_advisor.sandbox.portable import run_request; run_request()"
_TICK_SECONDS = 0.05
NOTE = (
    "This system has no /proc: memory and processes of the child process are read 20 times per second and not limited"
    " by the system."
)


def is_needed() -> bool:
    """Return whether this system cannot supervise forked processes."""
    return not Path("/proc/self/status").exists() or not hasattr(os, "fork")


def run_spawned(
    target: Callable[..., Any] | str, arguments: tuple[Any, ...], limits: Limits, environment: Mapping[str, str],
    on_line: Callable[[str], None] | None, on_progress: Callable[[float, float, str], None] | None,
) -> supervisor.ChildReport:  # fmt: skip
    """Run a function in a new interpreter, and return its result, failure and log.

    Parameters
    ----------
    target, arguments
        ``"package.module:function"`` with JSON arguments; or a function of this package with live objects, which are
        copied to the child.

    Raises
    ------
    ProfileError
        An object cannot be copied to another process.
    """
    report = supervisor.ChildReport()
    report.log.append(NOTE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        request, messages, log = (Path(folder, name) for name in ("request", "messages", "log"))
        request.write_bytes(_packed(target, arguments))
        messages.touch()
        variables = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(request), str(messages)],
                env=variables, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip
        log_file, message_file = (os.open(path, os.O_RDONLY) for path in (log, messages))
        reader = supervisor.Reader(log_file, message_file, report, limits.output_bytes, on_line, on_progress)
        try:
            end = _watched(process, limits, reader)
        finally:
            for member in reversed(_tree(process.pid)):
                with suppress(psutil.Error):
                    member.kill()
            process.wait()
            reader.drain()
        report.end = end
    return report


def _packed(target: Callable[..., Any] | str, arguments: tuple[Any, ...]) -> bytes:
    if isinstance(target, str):
        return json.dumps({"target": target, "arguments": arguments}).encode()
    try:
        import cloudpickle
    except ImportError:
        raise ProfileError(
            "A live model is copied to another process on this system, which requires cloudpickle: pip install"
            " cloudpickle, or pass the model's configuration."
        ) from None
    try:
        return bytes(cloudpickle.dumps((f"{target.__module__}:{target.__qualname__}", arguments)))
    except Exception as error:  # noqa: BLE001 - objects of others raise many errors if they cannot be copied
        raise ProfileError(
            f"The model cannot be copied to another process ({type(error).__name__}: {error!s:.200}): pass its"
            " configuration, or define it in a module."
        ) from None


def run_request() -> None:
    """Entry point of the child: its arguments are the files of the request and of the messages."""
    raw = Path(sys.argv[1]).read_bytes()
    supervisor.open_channel(os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND))
    try:
        if raw.startswith(b"{"):
            request = json.loads(raw)
            target, arguments = request["target"], request["arguments"]
        else:
            import pickle  # written by this process's parent, from its own objects

            target, arguments = pickle.loads(raw)  # noqa: S301
        module, _, name = target.partition(":")
        message = {"result": getattr(import_module(module), name)(*arguments)}
        json.dumps(message)
    except BaseException as error:  # noqa: BLE001 - every exception of the user's code is reported
        message = {"failure": describe_exception(error)}
    supervisor.send(message)


def _watched(process: subprocess.Popen[bytes], limits: Limits, reader: supervisor.Reader) -> dict[str, Any]:
    """Wait for the process, or for the first limit that it exceeds."""
    begun, peak, breach = time.monotonic(), 0, None
    while process.poll() is None and breach is None:
        reader.read_messages()
        reader.read_log()
        sizes = []
        for member in _tree(process.pid):
            with suppress(psutil.Error):
                sizes.append(member.memory_info().rss)
        peak = max(peak, sum(sizes))
        if peak > limits.resolved_memory_bytes():
            breach = "memory"
        elif len(sizes) > limits.processes:
            breach = "processes"
        elif reader.flooded:
            breach = "output"
        elif time.monotonic() - begun > limits.seconds:
            breach = "time"
        time.sleep(_TICK_SECONDS)
    status = process.poll()
    number = -status if status is not None and status < 0 else None
    seconds = time.monotonic() - begun
    return {"status": status, "signal": number, "breach": breach, "seconds": seconds, "peak_bytes": peak}


def _tree(number: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        process = psutil.Process(number)
        return [process, *process.children(recursive=True)]
    return []
