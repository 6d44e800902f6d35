"""Waits for processes that communicate, and recognizes by their state, not by the clock, that they wait in vain."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from smp_advisor.sandbox.failure import last_error_in_log
from smp_advisor.sandbox.limits import ANSWER_SECONDS
from smp_advisor.sandbox.supervisor import is_handling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.sandbox.failure import SourceLine


_STACK_SIGNAL = signal.SIGUSR2
_OBSERVATIONS = 40
"""Successive observations of processes that neither compute nor send: a thread that could run has run in between."""
_PAUSE_SECONDS = 0.05
_COMMUNICATES = re.compile(r'  File "[^"]*/torch/(?:distributed|autograd|nn/parallel|_ops|utils/_python_dispatch)\b')
"""Innermost frame of a process in a collective, or in a backward pass, which starts some."""
_STACK = "Stack (most recent call first):"


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended."""

    code: int
    """Exit status, or minus the number of the signal."""
    waited: bool = False
    """Whether it waited for another process in vain, and was therefore ended."""
    line: SourceLine | None = None
    """The user's line at which it waited."""


def answer_in(file: Path) -> None:
    """Have this process write its stack to a file on request; the first call of every process of `ends_of`."""
    stream = file.open("w", encoding="utf-8")
    faulthandler.register(_STACK_SIGNAL, file=stream, all_threads=False)


def ends_of(processes: Mapping[int, Path], *, seconds: float = float("inf")) -> dict[int, End] | None:
    """Wait for child processes, each with the file of its stack; None if the guard of `seconds` ended them.

    Those of them that wait for each other, or for one that has ended, are ended: each is in a collective, has slept in
    all observations, and has received and sent nothing since the first. A process that could run but gets no processor
    does not sleep, so a slow machine is never mistaken for a wait.
    """
    ends: dict[int, End] = {}
    until = time.monotonic() + seconds
    before: dict[int, _State] = {}
    observations = 0
    while running := [pid for pid in processes if pid not in ends]:
        for pid in running:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                ends[pid] = End(os.waitstatus_to_exitcode(status))
                observations = 0
        states = {pid: _state(pid, before.get(pid)) for pid in running if pid not in ends}
        is_asleep = all(pid in before and state.sleeps_since(before[pid]) for pid, state in states.items())
        observations = observations + 1 if is_asleep else 0
        before = states
        if states and observations >= _OBSERVATIONS:
            observations = 0
            stacks = {pid: _stack(pid, processes[pid]) for pid in states}
            if all(len(lines) > 1 and _COMMUNICATES.match(lines[1]) for lines in stacks.values()):
                _end(states)
                return ends | {
                    pid: End(
                        -signal.SIGKILL, waited=True, line=getattr(last_error_in_log(stacks[pid]), "source_line", None)
                    )
                    for pid in states
                }
        if states and time.monotonic() > until:
            _end(states)
            return None
        time.sleep(_PAUSE_SECONDS if observations else _PAUSE_SECONDS / 5)
    return ends


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
        """Whether the main thread has slept since `before`, and its other threads slept or only polled."""
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
    """Whether a thread sleeps, how often it began to, and how often it was interrupted."""
    with suppress(psutil.Error):  # it has just ended
        thread = psutil.Process(number)
        return thread.status() == psutil.STATUS_SLEEPING, *thread.num_ctx_switches()
    return False, 0, 0


def _stack(pid: int, file: Path) -> list[str]:
    """The stack that a process writes on request, innermost frame first; empty unless it is complete."""
    if not file.exists() or _has_ended(pid):
        return []
    before = len(_stacks(file))
    os.kill(pid, _STACK_SIGNAL)
    until = time.monotonic() + ANSWER_SECONDS
    # Between being taken and its handler, a signal is neither pending nor blocked: the handler must have begun.
    while len(_stacks(file)) == before or is_handling(pid, _STACK_SIGNAL):
        if _has_ended(pid) or time.monotonic() > until:
            return []
        time.sleep(_PAUSE_SECONDS / 5)
    return [_STACK, *_stacks(file)[-1].splitlines()[1:]]


def _stacks(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").split(_STACK)


def _has_ended(pid: int) -> bool:
    """Whether a child process has ended, which is not collected yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(pids: Iterable[int]) -> None:
    """End processes; each is stopped before any is ended, so that none sees the end of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    for pid in pids:
        os.waitpid(pid, 0)
