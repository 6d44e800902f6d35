"""Wait for the first message of the front end, and give up after three idle seconds."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.events import EventManager

__all__ = ["PATIENCE_SECONDS", "Handshake"]

PATIENCE_SECONDS = 3.0


class Handshake:
    """Calls `replace` if a displayed view sends no message, and `restore` if it does so later.

    Messages of views wait in the kernel's queue while cells run, so the time counts from the end of the last cell.
    """

    def __init__(
        self,
        *,
        replace: Callable[[], None],
        restore: Callable[[], None],
        events: EventManager,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replace, self._restore, self._events, self._clock = replace, restore, events, clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._quiet_since = clock()
        self._open = False
        self.replaced = False

    def start(self) -> Handshake:
        """Start to wait. Without an event loop, it does not wait, and the view stays."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return self
        self._open = True
        self._events.register("post_run_cell", self._cell_ended)
        self._loop.call_later(PATIENCE_SECONDS, self.check)
        return self

    def arrived(self) -> None:
        """A view has sent its message."""
        self._close()
        if self.replaced:
            self.replaced = False
            self._restore()

    def check(self) -> None:
        """Replace the view if its time is up, else check again later."""
        if not self._open or self._loop is None:
            return
        left = PATIENCE_SECONDS - (self._clock() - self._quiet_since)
        if left > 0.01:
            self._loop.call_later(left, self.check)
            return
        self._close()
        self.replaced = True
        self._replace()

    def _cell_ended(self, *_: object) -> None:
        self._quiet_since = self._clock()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._events.unregister("post_run_cell", self._cell_ended)
