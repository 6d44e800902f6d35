"""The process between the kernel and the child: it enforces the limits and ends whatever the child leaves behind."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.sandbox import channel
from smp_advisor.profiling.sandbox.processes import descendants, end_tree, is_handling, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.profiling.sandbox.limits import Limits

__all__ = ["bind_to_parent", "supervise"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_SECONDS = 0.05
_LAST_WORDS_SECONDS = 3.0
"""How long a child that broke a limit may take to write where it was; on a busy machine its last words come late."""
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def bind_to_parent(number: int) -> None:
    """Get a signal when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def supervise(start: Callable[[], None], limits: Limits, *, shared_bytes: int, where: int | None) -> None:
    """Run `start` in a child, watch it to its end, end what is left of it, and report; never returns.

    Parameters
    ----------
    start
        The child's whole life.
    limits
        Its bounds, together with all it starts.
    shared_bytes
        Memory that it has from the kernel it was forked from.
    where
        Signal upon which the child writes where it is; None where it knows none.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    bind_to_parent(signal.SIGTERM)
    # What the child's children leave behind comes here, and not to the machine's first process.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            bind_to_parent(signal.SIGKILL)
            os.setsid()
            start()
        finally:
            os._exit(0)
    end = _watch(child, limits, shared_bytes)
    if end["breach"] is not None and where is not None:
        if end["breach"] == "processes":
            end_tree(os.getpid(), child, spare=child)
        _ask(child, where)
    end_tree(os.getpid(), child)
    channel.send({"end": end})
    os._exit(0)


def _watch(child: int, limits: Limits, shared_bytes: int) -> dict[str, Any]:
    """Wait for the child to end or to break a limit."""
    begun = time.monotonic()
    most_bytes = limits.resolved_memory_bytes()
    peak_bytes = 0
    breach: str | None = None
    while (status := _collected(child)) is None and breach is None:
        tree = descendants(os.getpid())
        if len(tree) > limits.processes:
            breach = "processes"
            break
        held_bytes = memory_bytes(tree, shared_bytes, most_bytes)
        peak_bytes = max(peak_bytes, held_bytes)
        if held_bytes > most_bytes:
            breach = "memory"
        elif time.monotonic() - begun > limits.seconds:
            breach = "time"
        else:
            told = signal.sigtimedwait(_WATCHED, _TICK_SECONDS)
            if told is not None and told.si_signo != signal.SIGCHLD:
                breach = "asked"
    breach = None if status is not None else breach
    return {
        "breach": breach,
        "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
        "status": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
        "peak_bytes": peak_bytes,
        "seconds": time.monotonic() - begun,
    }


def _collected(child: int) -> int | None:
    """Collect what has ended; the child's wait status where it is among it."""
    status = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                status = found[1]
    return status


def _ask(child: int, where: int) -> None:
    """Have the child, and what it started, write where they are."""
    asked = [child, *descendants(child)]
    for pid in asked:
        for number in (where, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    until = time.monotonic() + _LAST_WORDS_SECONDS
    busy = True
    while busy and time.monotonic() < until:
        signal.sigtimedwait({signal.SIGCHLD}, _TICK_SECONDS)
        _collected(child)
        # What is interrupted ends of itself; what is only asked writes, and goes on.
        left = descendants(os.getpid())
        busy = bool(left) if where == signal.SIGINT else any(is_handling(one, where) for one in asked if one in left)
