"""Work as a count, which is the same on every machine and at every load."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Self

__all__ = ["MOST_STEPS", "Steps"]

MOST_STEPS = 20_000_000
"""Twice the steps of the longest bounded work of one call. What has no bound takes many times more."""


class Steps:
    """Counts the lines of Python that its block executes in this thread, those of a loop each time."""

    count = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, _frame: FrameType, event: str, _argument: object) -> object:
        self.count += event == "line"
        return self._trace
