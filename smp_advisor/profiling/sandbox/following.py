"""The kernel's side: read what a child writes and reports, until its supervisor says that nothing of it is left."""

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
from smp_advisor.profiling.sandbox import channel
from smp_advisor.profiling.sandbox.place import is_dump
from smp_advisor.profiling.sandbox.processes import end_tree
from smp_advisor.profiling.sandbox.supervisor import supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.profiling.sandbox.limits import Limits

__all__ = ["Followed", "follow"]

_KEPT_LINES = 200
_LINE_CHARACTERS = 4000
_PATIENCE_SECONDS = 15.0
"""For a supervisor to end its tree."""
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(slots=True)
class Followed:
    """A child's whole life, as the kernel saw it."""

    end: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    has_result: bool = False
    failure: dict[str, Any] | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    """Its last lines."""
    stack: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    """Where it was when it crashed or broke a limit, as faulthandler writes it."""


def follow(
    start: Callable[[int, int], None],
    limits: Limits,
    *,
    forked: bool,
    where: int | None,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Followed:
    """Run `start` in a supervised child and wait for it.

    Parameters
    ----------
    start
        The child's life, given the descriptors of its log and its channel.
    limits
        Of the child and everything it starts.
    forked
        Whether it works with the kernel's memory: that much is not counted against it.
    where
        Signal upon which it writes where it is.
    on_line, on_progress
        Called in the kernel with each line of the log, and with what `channel.progress` reports.

    Raises
    ------
    KeyboardInterrupt
        The user stopped it; nothing of it is left by then.
    """
    if not Path("/proc/self/status").exists():
        raise ProfileError("Models are run in a child process with limits, which needs Linux.")
    log_out, log_in = os.pipe()
    channel_out, channel_in = os.pipe()
    shared_bytes = _anonymous_bytes() if forked else 0
    supervisor = _fork()
    if supervisor == 0:
        try:
            os.close(log_out)
            os.close(channel_out)
            channel.open_as(channel_in)
            supervise(lambda: start(log_in, channel_in), limits, shared_bytes=shared_bytes, where=where)
        finally:
            os._exit(1)
    os.close(log_in)
    os.close(channel_in)
    followed = Followed()
    reader = _Reader(log_out, channel_out, followed, limits.output_bytes, on_line, on_progress)
    try:
        reader.read(supervisor)
    finally:
        with _uninterrupted():
            _finish(supervisor, reader)
    return followed


class _Reader:
    """Takes the log apart into lines and the channel into messages."""

    def __init__(
        self,
        log: int,
        messages: int,
        followed: Followed,
        output_bytes: int,
        on_line: Callable[[str], None] | None,
        on_progress: Callable[[float, float, str], None] | None,
    ) -> None:
        self.log, self.messages, self.followed = log, messages, followed
        self.left_bytes = output_bytes
        self.on_line, self.on_progress = on_line, on_progress
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.line = ""
        self.part = b""
        self.flooded = False
        os.set_blocking(log, False)
        os.set_blocking(messages, False)

    def read(self, supervisor: int) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self.log, selectors.EVENT_READ)
            ready.register(self.messages, selectors.EVENT_READ)
            while not self.followed.end:
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
        """Take what there is; True at the end."""
        try:
            data = os.read(self.log, 1 << 16)
        except BlockingIOError:
            return False
        if self.left_bytes > 0 >= self.left_bytes - len(data):
            self.flooded = True
            self.on_line = None  # the rest is only kept for its last lines
        self.left_bytes -= len(data)
        self.take(self.decoder.decode(data))
        return not data

    def take(self, text: str) -> None:
        *whole, self.line = (self.line + text).split("\n")
        for line in whole:
            self.tell(line)
        if len(self.line) > _LINE_CHARACTERS:
            self.tell(self.line)
            self.line = ""

    def tell(self, line: str) -> None:
        # A progress bar that rewrites its line counts as what it shows last.
        shown = _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])[:_LINE_CHARACTERS]
        if is_dump(shown):
            self.followed.stack.append(shown)
            return
        self.followed.log.append(shown)
        if self.on_line is not None:
            self.on_line(shown)

    def read_messages(self) -> bool:
        try:
            data = os.read(self.messages, 1 << 16)
        except BlockingIOError:
            return False
        *whole, self.part = (self.part + data).split(b"\n")
        for line in whole:
            self.hear(line)
        return not data

    def hear(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # cut short by a kill
        if not isinstance(message, dict):
            return
        if "progress" in message and self.on_progress is not None:
            self.on_progress(*message["progress"])
        if "result" in message:
            self.followed.result, self.followed.has_result = message["result"], True
        if "failure" in message:
            self.followed.failure = message["failure"]
        if "end" in message:
            end = message["end"]
            if end["breach"] == "asked" and self.left_bytes <= 0:
                end["breach"] = "output"
            self.followed.end = end

    def drain(self) -> None:
        """What was still in the pipes when everything had ended."""
        for read in (self.read_messages, self.read_log):
            with suppress(OSError):
                before = -1
                while not read() and before != self.left_bytes:
                    before = self.left_bytes
        if self.line:
            self.tell(self.line)
            self.line = ""
        os.close(self.log)
        os.close(self.messages)


def _finish(supervisor: int, reader: _Reader) -> None:
    """Nothing of the child is left when this returns."""
    until = time.monotonic() + _PATIENCE_SECONDS
    with suppress(ProcessLookupError):
        if not reader.followed.end:
            os.kill(supervisor, signal.SIGTERM)
    while os.waitpid(supervisor, os.WNOHANG)[0] == 0:
        # The supervisor waits for the log to be read before it can collect a child that floods it.
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
    """Hold back Ctrl-C: a second one must not leave processes behind."""
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
        # Kernels have threads; of what those may have locked the child touches only what Python frees after a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
