"""Code that runs in the child process: sets streams and limits, calls the function and reports its result."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.sandbox import channel, limits
from smp_advisor.profiling.sandbox.failure import describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STACK_SIGNAL", "redirect", "run_forked", "run_fresh"]

STACK_SIGNAL = signal.SIGUSR1
"""Signal on which a child process writes its Python stack."""
_RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


def redirect(log: int) -> None:
    """Redirect standard input from the null device, and standard output and error to the log."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def run_forked(function: Callable[..., Any], arguments: tuple[Any, ...], bounds: limits.Limits, log: int) -> None:
    """Call a function with the kernel's objects in this forked process."""
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    redirect(log)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (stays open to the end)
    # The kernel's streams would send to the notebook through sockets that belong to the kernel.
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False, errors="replace")  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False, errors="replace")  # type: ignore[misc]  # noqa: SIM115
    if "torch" in sys.modules:
        # The kernel's thread pool is not forked, so waiting for it would never end.
        sys.modules["torch"].set_num_threads(1)
    _work(lambda: function(*arguments), bounds)


def _work(function: Callable[[], Any], bounds: limits.Limits) -> None:
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=False)
    limits.apply(bounds)
    try:
        message = {"result": function()}
        json.dumps(message)
    except BaseException as error:  # noqa: BLE001 (every exception of the user's code is reported)
        message = {"failure": describe_exception(error)}
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    channel.send(message)


def run_fresh() -> None:
    """Entry point of a fresh interpreter; its arguments are the descriptors of the channel and of a JSON request."""
    messages, request_file = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(messages, False)  # noqa: FBT003
    channel.open_as(messages)
    with open(request_file, encoding="utf-8") as file:
        request = json.load(file)
    sys.path[:0] = [path for path in request["path"] if path not in sys.path]
    module, _, name = request["target"].partition(":")

    def work() -> Any:
        return getattr(import_module(module), name)(*request["arguments"])

    _work(work, limits.Limits(**request["limits"]))

    os._exit(0)
