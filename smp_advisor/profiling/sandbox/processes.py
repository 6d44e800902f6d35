"""Reading and ending the tree of processes below one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

__all__ = ["descendants", "end_tree", "memory_bytes"]

_END_SECONDS = 10.0


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


def memory_bytes(pids: list[int], most: int) -> int:
    """Memory that processes hold together, pages that several share counted once.

    The exact figure is dear to ask for, so it is asked for only where the sum without regard to sharing exceeds
    `most`.
    """
    rough = sum(_fields(Path(f"/proc/{pid}/status"), "RssAnon:", "RssShmem:") for pid in pids)
    if rough <= most:
        return rough
    return sum(_fields(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:") for pid in pids)


def _fields(file: Path, *names: str) -> int:
    with contextlib.suppress(OSError, ValueError):  # it has just ended
        return sum(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(names))
    return 0


def end_tree(pid: int, *, spare: int | None = None) -> None:
    """End every process below `pid`, whatever they start meanwhile too; `spare` is only stopped.

    All are stopped before any is ended: what a fork bomb would otherwise start in the place of those that are gone.
    """
    until = time.monotonic() + _END_SECONDS
    while (found := descendants(pid)) and found != [spare] and time.monotonic() < until:
        for one in found:
            _signal(one, signal.SIGSTOP)
        again = descendants(pid)
        if set(again) <= set(found):
            for one in set(again) - {spare}:
                _signal(one, signal.SIGKILL)
            _collect()
            time.sleep(0.005)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
