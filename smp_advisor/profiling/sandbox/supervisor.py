"""The process between the kernel and the child: enforces the limits and ends all remaining processes.

It and the child report to the kernel through a pipe, with one JSON message per line; no pickles.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from smp_advisor.profiling.sandbox.limits import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.profiling.sandbox.limits import Limits

__all__ = ["ANSWER_SECONDS", "end_tree", "is_handling", "open_channel", "progress", "send", "supervise"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_SECONDS = 0.05
ANSWER_SECONDS = 60.0
"""A last guard against a process that never answers a signal; a result names it when it strikes."""
_POLL_SECONDS = 0.02
"""Pause between checks for ended processes; processes that share much memory take longer to end."""
_WAITED_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

_channel: list[int] = []
"""Descriptor of the pipe in a child process; empty in the kernel."""


def open_channel(descriptor: int) -> None:
    """Send messages to this descriptor."""
    _channel[:] = [descriptor]


def send(message: dict[str, Any]) -> None:
    """Send one message; does nothing outside a child process."""
    if not _channel:
        return
    # The leading newline separates the message from one that was cut short by a kill.
    data = b"\n" + json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(_channel[0], data) :]


def progress(done: float, total: float, text: str = "") -> None:
    """Report progress from a child process; does nothing outside one."""
    send({"progress": [done, total, text]})


def _bind_to_parent(number: int) -> None:
    """Have this process receive a signal when its parent ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def supervise(start: Callable[[], None], limits: Limits, *, shared_bytes: int, stack_signal: int | None) -> None:
    """Run `start` in a child process, wait for it, end its remaining processes and report; never returns.

    `shared_bytes` is the memory shared with the kernel after a fork.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_SIGNALS)
    _bind_to_parent(signal.SIGHUP)
    # Orphaned descendants become children of this process instead of the init process.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_SIGNALS)
            _bind_to_parent(signal.SIGKILL)
            os.setsid()
            start()
        finally:
            os._exit(0)
    end = _wait(child, limits, shared_bytes)
    if end["breach"] not in (None, "abandoned") and stack_signal is not None:
        if end["breach"] == "processes":
            end_tree(os.getpid(), child, spare=child)
        end["answered"] = _request_stacks(child, stack_signal)
    end_tree(os.getpid(), child)
    send({"end": end})
    os._exit(0)


def _wait(child: int, limits: Limits, shared_bytes: int) -> dict[str, Any]:
    """Wait until the child ends or exceeds a limit."""
    begun = time.monotonic()
    limit_bytes = limits.resolved_memory_bytes()
    peak_bytes = 0
    breach: str | None = None
    while (status := _collected(child)) is None and breach is None:
        tree = _descendants(os.getpid())
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
                breach = "requested" if received.si_signo == signal.SIGTERM else "abandoned"
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


def _request_stacks(child: int, stack_signal: int) -> bool:
    """Have the child and its descendants write their stacks; whether all did."""
    pids = [child, *_descendants(child)]
    for pid in pids:
        for number in (stack_signal, signal.SIGCONT):
            _signal(pid, number)
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until:
        signal.sigtimedwait({signal.SIGCHLD}, _TICK_SECONDS)
        _collected(child)
        # An interrupted process ends by itself; others write their stack and continue.
        alive = _descendants(os.getpid())
        if stack_signal == signal.SIGINT:
            busy = bool(alive)
        else:
            busy = any(is_handling(pid, stack_signal) for pid in pids if pid in alive)
        if not busy:
            return True
    return False


def is_handling(pid: int, number: int) -> bool:
    """Whether a signal sent to a process is pending or being handled."""
    signals = 0
    with suppress(OSError, ValueError):  # the process has just ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            # A signal is blocked while its handler runs.
            if line.startswith(("SigPnd:", "ShdPnd:", "SigBlk:")):
                signals |= int(line.split()[1], 16)
    return bool(signals >> (number - 1) & 1)


def _descendants(pid: int) -> list[int]:
    """All descendants of `pid`, except for zombies."""
    running = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    running.append(child.pid)
    return running


def end_tree(pid: int, group: int, *, spare: int | None = None) -> None:
    """End all descendants of `pid`, including new ones; the process `spare` is stopped but not ended.

    All processes are stopped before any is ended, and those of `group` at once. Otherwise a fork bomb would replace the
    ended processes.
    """
    until = time.monotonic() + ANSWER_SECONDS
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL if spare is None else signal.SIGSTOP)
    stopped: set[int] = set()
    while (tree := set(_descendants(pid)) - {spare}) and time.monotonic() < until:
        for descendant in tree - stopped:
            _signal(descendant, signal.SIGSTOP)
        if tree <= stopped:
            for descendant in tree:
                _signal(descendant, signal.SIGKILL)
            _collected(0)
            time.sleep(_POLL_SECONDS)
        stopped |= tree


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
