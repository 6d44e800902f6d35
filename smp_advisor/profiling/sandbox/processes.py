"""Reading and ending the tree of processes below one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

__all__ = ["descendants", "end_tree", "is_handling", "memory_bytes"]

_END_SECONDS = 10.0
_BETWEEN_SECONDS = 0.02
"""For what was ended to go: processes that share much memory take a while."""


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, at any depth; those that have ended and wait to be collected are left out."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # "pid (name) state ppid ...": the name may hold spaces and brackets.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            children[int(parent)].append(int(entry.name))
    found: list[int] = []
    waiting = list(children[pid])
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children[one]
    return found


def memory_bytes(pids: list[int], shared_bytes: int, most: int) -> int:
    """Memory that processes hold together beyond what they have from the kernel, shared pages counted once.

    The exact figure is dear to ask for, and asking holds up a process that forks: it is asked for only where the sum
    without regard to sharing exceeds `most`.
    """
    held = [_fields(Path(f"/proc/{pid}/status"), "RssAnon:", "RssShmem:") for pid in pids]
    rough = sum(max(0, one - shared_bytes) for one in held)
    if rough <= most:
        return rough
    exact = sum(_fields(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:") for pid in pids)
    return max(0, exact - shared_bytes)


def is_handling(pid: int, number: int) -> bool:
    """Whether a process has yet to hear a signal that it was sent, or is still at work on it."""
    waiting = 0
    with contextlib.suppress(OSError, ValueError):  # it has just ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            # While its handler runs, a signal is blocked.
            if line.startswith(("SigPnd:", "ShdPnd:", "SigBlk:")):
                waiting |= int(line.split()[1], 16)
    return bool(waiting >> (number - 1) & 1)


def _fields(file: Path, *names: str) -> int:
    with contextlib.suppress(OSError, ValueError):  # it has just ended
        return sum(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(names))
    return 0


def end_tree(pid: int, group: int, *, spare: int | None = None) -> None:
    """End every process below `pid`, whatever they start meanwhile too; `spare` is only stopped.

    All are stopped before any is ended, those of `group` at one stroke: a fork bomb would otherwise go off in the place
    of those that are gone.
    """
    until = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL if spare is None else signal.SIGSTOP)
    stopped: set[int] = set()
    while (found := set(descendants(pid)) - {spare}) and time.monotonic() < until:
        for one in found - stopped:
            _signal(one, signal.SIGSTOP)
        if found <= stopped:
            for one in found:
                _signal(one, signal.SIGKILL)
            _collect()
            time.sleep(_BETWEEN_SECONDS)
        stopped |= found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
