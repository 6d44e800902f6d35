"""Work that ends when its caller no longer waits for the answer."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

_STOPPED: ContextVar[Event | None] = ContextVar("_STOPPED", default=None)


class Stopped(KeyboardInterrupt):
    """The caller no longer waits."""


@contextmanager
def until(stopped: Event) -> Iterator[None]:
    """Let the work of a block end with `Stopped` at its next estimate once an event is set."""
    token = _STOPPED.set(stopped)
    try:
        yield
    finally:
        _STOPPED.reset(token)


def stop_if_nobody_waits() -> None:
    """Raise `Stopped` if the caller of this work has gone: called before each estimate and each block of columns."""
    stopped = _STOPPED.get()
    if stopped is not None and stopped.is_set():
        raise Stopped
