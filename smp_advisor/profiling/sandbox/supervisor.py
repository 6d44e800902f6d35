"""The process between the kernel and the child: enforces the limits and ends all remaining processes."""

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
_DUMP_SECONDS = 3.0
"""Time for a child that exceeded a limit to write its stack; on a busy machine that is slow."""
_WAITED_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def bind_to_parent(number: int) -> None:
    """Have this process receive a signal when its parent ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def supervise(start: Callable[[], None], limits: Limits, *, shared_bytes: int, stack_signal: int | None) -> None:
    """Run `start` in a child process, wait for it, end its remaining processes and report; never returns.

    Parameters
    ----------
    shared_bytes
        Memory shared with the kernel after a fork.
    stack_signal
        Signal on which the child writes its stack; None if there is none.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_SIGNALS)
    bind_to_parent(signal.SIGTERM)
    # Orphaned descendants become children of this process instead of the init process.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_SIGNALS)
            bind_to_parent(signal.SIGKILL)
            os.setsid()
            start()
        finally:
            os._exit(0)
    end = _wait(child, limits, shared_bytes)
    if end["breach"] is not None and stack_signal is not None:
        if end["breach"] == "processes":
            end_tree(os.getpid(), child, spare=child)
        _request_stacks(child, stack_signal)
    end_tree(os.getpid(), child)
    channel.send({"end": end})
    os._exit(0)


def _wait(child: int, limits: Limits, shared_bytes: int) -> dict[str, Any]:
    """Wait until the child ends or exceeds a limit."""
    begun = time.monotonic()
    limit_bytes = limits.resolved_memory_bytes()
    peak_bytes = 0
    breach: str | None = None
    while (status := _collected(child)) is None and breach is None:
        tree = descendants(os.getpid())
        if len(tree) > limits.processes:
            breach = "processes"
            break
        used_bytes = memory_bytes(tree, shared_bytes, limit_bytes)
        peak_bytes = max(peak_bytes, used_bytes)
        if used_bytes > limit_bytes:
            breach = "memory"
        elif time.monotonic() - begun > limits.seconds:
            breach = "time"
        else:
            received = signal.sigtimedwait(_WAITED_SIGNALS, _TICK_SECONDS)
            if received is not None and received.si_signo != signal.SIGCHLD:
                breach = "requested"
    breach = None if status is not None else breach
    return {
        "breach": breach,
        "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
        "status": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
        "peak_bytes": peak_bytes,
        "seconds": time.monotonic() - begun,
    }


def _collected(child: int) -> int | None:
    """Collect ended processes, and return the child's wait status if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = ended[1]
    return status


def _request_stacks(child: int, stack_signal: int) -> None:
    """Have the child and its descendants write their stacks."""
    pids = [child, *descendants(child)]
    for pid in pids:
        for number in (stack_signal, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    until = time.monotonic() + _DUMP_SECONDS
    busy = True
    while busy and time.monotonic() < until:
        signal.sigtimedwait({signal.SIGCHLD}, _TICK_SECONDS)
        _collected(child)
        # An interrupted process ends by itself; others write their stack and continue.
        alive = descendants(os.getpid())
        if stack_signal == signal.SIGINT:
            busy = bool(alive)
        else:
            busy = any(is_handling(pid, stack_signal) for pid in pids if pid in alive)
