"""The pipe on which a child reports to the kernel: lines of JSON, never pickles."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["close", "open_as", "progress", "send"]

_file: list[int] = []
"""Descriptor of the pipe in this process; none in the kernel."""


def open_as(descriptor: int) -> None:
    """Report on this descriptor from now on."""
    _file[:] = [descriptor]


def close() -> None:
    """Report nowhere."""
    _file.clear()


def send(message: dict[str, Any]) -> None:
    """Write one message; nothing outside of a child."""
    if not _file:
        return
    # A line of its own even where the one before was cut short by a kill.
    data = b"\n" + json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(_file[0], data) :]


def progress(done: float, total: float, text: str = "") -> None:
    """Say from within a child how far it is; nothing outside of one."""
    send({"progress": [done, total, text]})
