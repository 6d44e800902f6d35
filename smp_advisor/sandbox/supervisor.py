"""A supervised child process: its log and messages in the kernel, and the process in between that enforces its limits.

The supervisor and the child report to the kernel through a pipe, with one JSON message per line; no pickles.
"""

from __future__ import annotations

import codecs
import ctypes
import itertools
import json
import os
import re
import selectors
import signal
import threading
import time
import warnings
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from smp_advisor.errors import ProfileError
from smp_advisor.sandbox.failure import is_dump
from smp_advisor.sandbox.limits import ANSWER_SECONDS, memory_bytes, status_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.sandbox.limits import Limits


_LOG_LINES = 200
_LINE_CHARACTERS = 4000
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(slots=True)
class ChildReport:
    """Result, failure and log of a child process, as received by the kernel."""

    end: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    has_result: bool = False
    failure: dict[str, Any] | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))
    """Last lines of its output."""
    stack: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))
    """Stack dump by faulthandler when it crashed or exceeded a limit."""


def run_monitored(
    start: Callable[[int, int], None], limits: Limits, *, forked: bool, stack_signals: tuple[int, ...],
    on_line: Callable[[str], None] | None = None, on_progress: Callable[[float, float, str], None] | None = None,
) -> ChildReport:  # fmt: skip
    """Run `start` in a supervised child, with the descriptors of the log and of the channel, and wait for it.

    `forked` is whether the child shares the kernel's memory, which then does not count against its limit.
    `stack_signals` are sent to a child that exceeds a limit; on the first it writes its stack.
    """
    if not Path("/proc/self/status").exists():
        raise ProfileError("Running a program in a child process with limits requires Linux.")
    log_out, log_in = os.pipe()
    channel_out, channel_in = os.pipe()
    shared_bytes = status_bytes(Path("/proc/self/status"), "RssAnon:") if forked else 0
    # Blocked before the fork: a signal of the first moments waits, also where it is ignored, as SIGHUP is under nohup.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_SIGNALS)
    try:
        supervisor = _fork()
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if supervisor == 0:
        try:
            os.close(log_out)
            os.close(channel_out)
            open_channel(channel_in)
            _supervise(
                lambda: start(log_in, channel_in), limits, shared_bytes=shared_bytes, stack_signals=stack_signals
            )
        finally:
            os._exit(1)
    for descriptor in (log_in, channel_in):
        os.close(descriptor)
    for descriptor in (log_out, channel_out):
        os.set_blocking(descriptor, False)
    report = ChildReport()
    reader = Reader(log_out, channel_out, report, limits.output_bytes, on_line, on_progress)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        reader.read(supervisor)
    finally:
        with _uninterrupted():
            _finish(supervisor, reader)
    return report


class Reader:
    """Splits the log into lines and the channel into messages."""

    def __init__(
        self, log: int, messages: int, report: ChildReport, output_bytes: int,
        on_line: Callable[[str], None] | None, on_progress: Callable[[float, float, str], None] | None,
    ) -> None:  # fmt: skip
        self.log, self.messages, self.report = log, messages, report
        self.remaining_bytes = output_bytes
        self.on_line, self.on_progress = on_line, on_progress
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.line = ""
        self.partial_message = b""
        self.flooded = False

    def read(self, supervisor: int) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self.log, selectors.EVENT_READ)
            ready.register(self.messages, selectors.EVENT_READ)
            while not self.report.end:
                for key, _ in ready.select(1.0):
                    ended = self.read_log() if key.fd == self.log else self.read_messages()
                    if ended:
                        ready.unregister(key.fd)
                        if key.fd == self.messages:
                            return
                if self.flooded:
                    self.flooded = False
                    os.kill(supervisor, signal.SIGTERM)

    def read_log(self) -> bool:
        """Read the available log; True at its end."""
        try:
            data = os.read(self.log, 1 << 16)
        except BlockingIOError:
            return False
        if self.remaining_bytes > 0 >= self.remaining_bytes - len(data):
            self.flooded = True
            self.on_line = None  # further output only updates the last lines
        self.remaining_bytes -= len(data)
        *lines, self.line = (self.line + self.decoder.decode(data)).split("\n")
        for line in lines:
            self.add_line(line)
        if len(self.line) > _LINE_CHARACTERS:
            self.add_line(self.line)
            self.line = ""
        return not data

    def add_line(self, line: str) -> None:
        # For a progress bar that rewrites its line, only the last state counts.
        text = _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])[:_LINE_CHARACTERS]
        if is_dump(text):
            self.report.stack.append(text)
            return
        self.report.log.append(text)
        if self.on_line is not None:
            self.on_line(text)

    def read_messages(self) -> bool:
        try:
            data = os.read(self.messages, 1 << 16)
        except BlockingIOError:
            return False
        *lines, self.partial_message = (self.partial_message + data).split(b"\n")
        for line in lines:
            self.add_message(line)
        return not data

    def add_message(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # cut short by a kill
        if not isinstance(message, dict):
            return
        if "progress" in message and self.on_progress is not None:
            self.on_progress(*message["progress"])
        if "result" in message:
            self.report.result, self.report.has_result = message["result"], True
        if "failure" in message:
            self.report.failure = message["failure"]
        if "end" in message:
            end = message["end"]
            if end["breach"] == "requested" and self.remaining_bytes <= 0:
                end["breach"] = "output"
            self.report.end = end

    def drain(self) -> None:
        """Read the remaining data after all processes have ended."""
        for read in (self.read_messages, self.read_log):
            with suppress(OSError):
                before = -1
                while not read() and before != self.remaining_bytes:
                    before = self.remaining_bytes
        if self.line:
            self.add_line(self.line)
            self.line = ""
        os.close(self.log)
        os.close(self.messages)


def _finish(supervisor: int, reader: Reader) -> None:
    """Wait until all processes of the child have ended, and end them if necessary."""
    until = time.monotonic() + 3 * ANSWER_SECONDS
    with suppress(ProcessLookupError):
        if not reader.report.end:
            os.kill(supervisor, signal.SIGHUP)
    while os.waitpid(supervisor, os.WNOHANG)[0] == 0:
        # A child that floods the log blocks until it is read.
        with suppress(OSError):
            reader.read_messages()
            reader.read_log()
        if time.monotonic() > until:
            _end_tree(supervisor, None)
            os.kill(supervisor, signal.SIGKILL)
            until = float("inf")
        time.sleep(0.005)
    reader.on_progress = None
    reader.drain()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C inside the block, so that a second one does not leave processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork() -> int:
    with warnings.catch_warnings():
        # The kernel has threads; the child uses only locks that Python releases after a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_SECONDS = 0.05
_TICKS_PER_EXACT_FIGURE = 10
"""The exact figure of the memory takes about 10 ms per GiB."""
_POLL_SECONDS = 0.02
"""Pause between checks for ended processes; processes that share much memory take longer to end."""
_WAITED_SIGNALS = {
    getattr(signal, name)
    for name in ("SIGCHLD", "SIGTERM", "SIGINT", "SIGHUP")
    if hasattr(signal, name)  # Windows has two of them
}

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


def _supervise(start: Callable[[], None], limits: Limits, *, shared_bytes: int, stack_signals: tuple[int, ...]) -> None:
    """Run `start` in a child process, wait for it, end its remaining processes and report; never returns."""
    os.setsid()
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
    if end["breach"] not in (None, "abandoned") and stack_signals:
        if end["breach"] == "processes":
            _end_tree(os.getpid(), child, spare=child)
        # Out of memory, a child may be describing an exception, whose lines are no longer on its stack.
        to_end = end["breach"] == "memory" or signal.SIGINT in stack_signals
        # A signal is neither pending nor blocked for a moment before its handler runs. One that is sent after that
        # moment waits for the handler, so after the second request at least the first stack is complete.
        end["answered"] = all(_request_stacks(child, stack_signals, to_end=to_end) for _ in range(1 if to_end else 2))
    _end_tree(os.getpid(), child)
    send({"end": end})
    os._exit(0)


def _wait(child: int, limits: Limits, shared_bytes: int) -> dict[str, Any]:
    """Wait until the child ends or exceeds a limit."""
    begun = time.monotonic()
    limit_bytes = limits.resolved_memory_bytes()
    peak_bytes = 0
    breach: str | None = None
    for tick in itertools.count():
        if (status := _collected(child)) is not None or breach is not None:
            break
        tree = _descendants(os.getpid())
        if len(tree) > limits.processes:
            breach = "processes"
            break
        used_bytes = memory_bytes(tree, shared_bytes, limit_bytes if tick % _TICKS_PER_EXACT_FIGURE else -1)
        peak_bytes = max(peak_bytes, used_bytes)
        if used_bytes > limit_bytes:
            # Stopped, the line that took the memory cannot end before the stacks are written. If it has just ended,
            # with an exception of its own, the child reports that.
            for pid in tree:
                _signal(pid, signal.SIGSTOP)
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, child, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if memory_bytes(tree, shared_bytes) > limit_bytes:
                breach = "memory"
            else:
                for pid in tree:
                    _signal(pid, signal.SIGCONT)
        elif time.monotonic() - begun > limits.seconds:
            breach = "time"
        else:
            # A look takes time: at processes that last it is made more seldom.
            received = signal.sigtimedwait(_WAITED_SIGNALS, _TICK_SECONDS * min(4, 1 + tick // 10))
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


def _request_stacks(child: int, stack_signals: tuple[int, ...], *, to_end: bool) -> bool:
    """Have the child and its descendants write their stacks, or end; whether all did."""
    for pid in [child, *_descendants(child)]:
        for number in (*stack_signals, signal.SIGCONT):
            _signal(pid, number)
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until:
        signal.sigtimedwait({signal.SIGCHLD}, _TICK_SECONDS)
        _collected(child)
        if not any(to_end or is_handling(pid, stack_signals[0]) for pid in _descendants(os.getpid())):
            return True
    return False


def is_handling(pid: int, number: int) -> bool:
    """Return whether a signal sent to a process is pending or being handled."""
    signals = 0
    with suppress(OSError, ValueError):  # the process has just ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            # A signal is blocked while its handler runs.
            if line.startswith(("SigPnd:", "ShdPnd:", "SigBlk:")):
                signals |= int(line.split()[1], 16)
    return bool(signals >> (number - 1) & 1)


def _descendants(pid: int) -> list[int]:
    """Return all descendants of `pid`, except for zombies: the kernel's own lists spare a look at all processes."""
    tree, running = [pid], []
    if not Path(f"/proc/{pid}/task/{pid}/children").exists():  # the kernel is built without them
        with suppress(psutil.NoSuchProcess):
            tree += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    for parent in tree:  # which grows
        for file in Path("/proc").glob(f"{parent}/task/*/children"):
            with suppress(OSError):  # it has just ended
                tree += map(int, file.read_text().split())
    for child in tree[1:]:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(child).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                running.append(child)
    return running


def _end_tree(pid: int, group: int | None, *, spare: int | None = None) -> None:
    """End all descendants of `pid`, including new ones; the process `spare` is stopped but not ended.

    All processes are stopped before any is ended, and those of `group`, not that of `pid`, at once. Otherwise a fork
    bomb would replace the ended processes.
    """
    until = time.monotonic() + ANSWER_SECONDS
    if group is not None:
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
