"""Recognizes by the state of processes, not by the clock, that they wait in vain."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Stillness:
    """Successive observations of processes in which all sleep, and receive and send nothing."""

    def __init__(self) -> None:
        self._before: dict[int, _State] = {}
        self._count = 0

    def observe(self, pids: Iterable[int]) -> int:
        """Observe the processes once; the number of observations in a row in which all were still."""
        states = {pid: _state(pid, self._before.get(pid)) for pid in pids}
        still = all(pid in self._before and state.sleeps_since(self._before[pid]) for pid, state in states.items())
        self._count = self._count + 1 if still else 0
        self._before = states
        return self._count


@dataclass(frozen=True, slots=True)
class _State:
    """Whether the threads of a process sleep, how often each was switched, and the bytes that it has moved."""

    main: tuple[bool, int, int]
    threads: Mapping[str, tuple[bool, int, int]]
    moved: str

    def sleeps_since(self, before: _State) -> bool:
        """Return whether the main thread has slept since `before`, and its other threads slept or only polled."""
        if not self.main[0] or self.main != before.main or self.moved != before.moved or not self.threads:
            return False
        for thread, (is_asleep, looked, interrupted) in self.threads.items():
            _, looked_before, interrupted_before = before.threads.get(thread, (False, -1, -1))
            if interrupted != interrupted_before or not (is_asleep or looked != looked_before):
                return False
        return True


def _state(pid: int, before: _State | None) -> _State:
    main = _thread(pid)
    if before is None or main != before.main or not main[0]:
        return _State(main, {}, "")
    moved = ""
    threads = {}
    with suppress(OSError):
        threads = {task.name: _thread(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()}
        moved = Path(f"/proc/{pid}/io").read_text().partition("read_bytes")[0]
    return _State(main, threads, moved)


def _thread(number: int) -> tuple[bool, int, int]:
    """Return whether a thread sleeps, how often it began to, and how often it was interrupted."""
    with suppress(psutil.Error):  # it has just ended
        thread = psutil.Process(number)
        return thread.status() == psutil.STATUS_SLEEPING, *thread.num_ctx_switches()
    return False, 0, 0
