"""A child's life: its streams, its limits, the user's work, and the report."""

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

__all__ = ["WHERE", "live_forked", "live_fresh", "redirect"]

WHERE = signal.SIGUSR1
"""Makes a child write its Python stack."""
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


def redirect(log: int) -> None:
    """Standard input from nowhere, standard output and error into the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def live_forked(function: Callable[..., Any], arguments: tuple[Any, ...], bounds: limits.Limits, log: int) -> None:
    """Call a function of the kernel's, with the kernel's objects, in this forked process."""
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    redirect(log)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (stays open to the end)
    # Not the kernel's streams, which would send to the notebook through sockets that are not this process's.
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False, errors="replace")  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False, errors="replace")  # type: ignore[misc]  # noqa: SIM115
    if "torch" in sys.modules:
        # The kernel's pool of threads was not forked: waiting for it would be for ever.
        sys.modules["torch"].set_num_threads(1)
    _work(lambda: function(*arguments), bounds)


def _work(function: Callable[[], Any], bounds: limits.Limits) -> None:
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(WHERE, file=2, all_threads=False)
    limits.apply(bounds)
    try:
        message = {"result": function()}
        json.dumps(message)
    except BaseException as error:  # noqa: BLE001 (whatever the user's code raises is to be reported)
        message = {"failure": describe_exception(error)}
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    channel.send(message)


def live_fresh() -> None:
    """A fresh interpreter's whole life: its arguments are the descriptors of its channel and of its request, JSON."""
    messages, request = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(messages, False)  # noqa: FBT003
    channel.open_as(messages)
    with open(request, encoding="utf-8") as file:
        asked = json.load(file)
    sys.path[:0] = [path for path in asked["path"] if path not in sys.path]
    module, _, name = asked["target"].partition(":")

    def work() -> Any:
        return getattr(import_module(module), name)(*asked["arguments"])

    _work(work, limits.Limits(**asked["limits"]))

    os._exit(0)
