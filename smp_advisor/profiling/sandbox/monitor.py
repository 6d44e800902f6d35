"""Runs a supervised child process, and reads its log and messages until all its processes have ended."""

from __future__ import annotations

import codecs
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

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.sandbox.failure import is_dump
from smp_advisor.profiling.sandbox.limits import status_bytes
from smp_advisor.profiling.sandbox.supervisor import ANSWER_SECONDS, end_tree, open_channel, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.profiling.sandbox.limits import Limits

__all__ = ["ChildReport", "run_monitored"]

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
    start: Callable[[int, int], None],
    limits: Limits,
    *,
    forked: bool,
    stack_signal: int | None,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ChildReport:
    """Run `start` in a supervised child, with the descriptors of the log and of the channel, and wait for it.

    `forked` is whether the child shares the kernel's memory, which then does not count against its limit.
    """
    if not Path("/proc/self/status").exists():
        raise ProfileError("Running a model in a child process with limits requires Linux.")
    log_out, log_in = os.pipe()
    channel_out, channel_in = os.pipe()
    shared_bytes = status_bytes(Path("/proc/self/status"), "RssAnon:") if forked else 0
    supervisor = _fork()
    if supervisor == 0:
        try:
            os.close(log_out)
            os.close(channel_out)
            open_channel(channel_in)
            supervise(lambda: start(log_in, channel_in), limits, shared_bytes=shared_bytes, stack_signal=stack_signal)
        finally:
            os._exit(1)
    os.close(log_in)
    os.close(channel_in)
    report = ChildReport()
    reader = _Reader(log_out, channel_out, report, limits.output_bytes, on_line, on_progress)
    try:
        reader.read(supervisor)
    finally:
        with _uninterrupted():
            _finish(supervisor, reader)
    return report


class _Reader:
    """Splits the log into lines and the channel into messages."""

    def __init__(
        self,
        log: int,
        messages: int,
        report: ChildReport,
        output_bytes: int,
        on_line: Callable[[str], None] | None,
        on_progress: Callable[[float, float, str], None] | None,
    ) -> None:
        self.log, self.messages, self.report = log, messages, report
        self.remaining_bytes = output_bytes
        self.on_line, self.on_progress = on_line, on_progress
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.line = ""
        self.partial_message = b""
        self.flooded = False
        os.set_blocking(log, False)
        os.set_blocking(messages, False)

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
        self.split_lines(self.decoder.decode(data))
        return not data

    def split_lines(self, text: str) -> None:
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            self.add_line(line)
        if len(self.line) > _LINE_CHARACTERS:
            self.add_line(self.line)
            self.line = ""

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


def _finish(supervisor: int, reader: _Reader) -> None:
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
            end_tree(supervisor, supervisor)
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
