"""Work as a count, which is the same on every machine and at every load."""

import sys
from types import FrameType
from typing import Self

__all__ = ["MOST_STEPS", "Steps"]

MOST_STEPS = 20_000_000
"""Twice the steps of the longest bounded work of one call. What has no bound takes many times more."""


class Steps:
    """Counts the lines of Python that its block executes in this thread, those of a loop each time."""

    def __enter__(self) -> Self:
        self._before, self._counted = sys.gettrace(), [0]
        counted = self._counted

        def trace(_frame: FrameType, event: str, _argument: object) -> object:
            if event == "line":
                counted[0] += 1
            return trace

        sys.settrace(trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    @property
    def count(self) -> int:
        return self._counted[0]
