"""The pipe from a child process to the kernel, with one JSON message per line; no pickles."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["close", "open_as", "progress", "send"]

_descriptors: list[int] = []
"""Descriptor of the pipe in a child process; empty in the kernel."""


def open_as(descriptor: int) -> None:
    """Send messages to this descriptor."""
    _descriptors[:] = [descriptor]


def close() -> None:
    """Stop sending messages."""
    _descriptors.clear()


def send(message: dict[str, Any]) -> None:
    """Send one message; does nothing outside a child process."""
    if not _descriptors:
        return
    # The leading newline separates the message from one that was cut short by a kill.
    data = b"\n" + json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(_descriptors[0], data) :]


def progress(done: float, total: float, text: str = "") -> None:
    """Report progress from a child process; does nothing outside one."""
    send({"progress": [done, total, text]})
