"""Inspection and termination of process trees."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

__all__ = ["descendants", "end_tree", "is_handling", "memory_bytes", "status_bytes"]

_END_SECONDS = 10.0
_POLL_SECONDS = 0.02
"""Pause between checks for ended processes; processes that share much memory take longer to end."""


def descendants(pid: int) -> list[int]:
    """All descendants of `pid`, except for zombies."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # "pid (name) state ppid ...": the name may contain spaces and brackets.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            children[int(parent)].append(int(entry.name))
    tree: list[int] = []
    pending = list(children[pid])
    while pending:
        descendant = pending.pop()
        tree.append(descendant)
        pending += children[descendant]
    return tree


def memory_bytes(pids: list[int], shared_bytes: int, limit: int) -> int:
    """Total memory of processes in addition to pages shared with the kernel; shared pages count once.

    The exact figure is expensive and blocks processes that fork, so it is read only if the sum that ignores sharing
    exceeds `limit`.
    """
    resident = [status_bytes(Path(f"/proc/{pid}/status"), "RssAnon:", "RssShmem:") for pid in pids]
    upper_bound = sum(max(0, size - shared_bytes) for size in resident)
    if upper_bound <= limit:
        return upper_bound
    exact = sum(status_bytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:") for pid in pids)
    return max(0, exact - shared_bytes)


def is_handling(pid: int, number: int) -> bool:
    """Whether a signal sent to a process is pending or being handled."""
    signals = 0
    with contextlib.suppress(OSError, ValueError):  # the process has just ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            # A signal is blocked while its handler runs.
            if line.startswith(("SigPnd:", "ShdPnd:", "SigBlk:")):
                signals |= int(line.split()[1], 16)
    return bool(signals >> (number - 1) & 1)


def status_bytes(file: Path, *names: str) -> int:
    """Sum of the named fields of a file in /proc, in bytes; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):  # the process has just ended
        return sum(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(names))
    return 0


def end_tree(pid: int, group: int, *, spare: int | None = None) -> None:
    """End all descendants of `pid`, including new ones; the process `spare` is stopped but not ended.

    All processes are stopped before any is ended, and those of `group` at once. Otherwise a fork bomb would replace the
    ended processes.
    """
    until = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL if spare is None else signal.SIGSTOP)
    stopped: set[int] = set()
    while (tree := set(descendants(pid)) - {spare}) and time.monotonic() < until:
        for descendant in tree - stopped:
            _signal(descendant, signal.SIGSTOP)
        if tree <= stopped:
            for descendant in tree:
                _signal(descendant, signal.SIGKILL)
            _collect()
            time.sleep(_POLL_SECONDS)
        stopped |= tree


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
