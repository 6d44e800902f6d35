"""Seconds that mean the same on every machine and at every load.

A loop is measured next to the work. Its time shows how much slower this machine is, now, than the one of the limits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOOP_SECONDS = 0.07
"""Those of the loop on the machine of the limits."""


def _loop() -> int:
    total, table = 0, {}
    for number in range(400_000):
        table[number & 1023] = total
        total += len(str(number)) ^ table.get(number >> 3, 0)
    return total


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of the work on the machine of the limits: its ratio to the loop, before and after it."""
    times = []
    for action in (_loop, work, _loop):
        began = clock()
        action()
        times.append(clock() - began)
    return LOOP_SECONDS * 2 * times[1] / (times[0] + times[2])
