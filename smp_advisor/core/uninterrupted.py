"""Imports that Stop does not break: numpy, pandas and torch cannot be imported again after an interrupted import."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Run a block to its end, and raise an interrupt that arrives in it afterwards.

    Interrupts reach the main thread only: a block in another thread runs as it is.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if is_main else None
    if not callable(handler):  # ignored, left to the system, or a handler that is not Python's
        yield
        return
    arrived = []
    signal.signal(signal.SIGINT, lambda *event: arrived.append(event))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[-1])
