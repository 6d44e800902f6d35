"""Outputs that a notebook saves: they follow the plan on screen, so that a notebook opened again shows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["QUIET_SECONDS", "SavedOutputs"]

QUIET_SECONDS = 1.0
"""The output is written after this time without a change."""
_MOST = 8
"""Outputs of one advisor that are kept up to date; those of earlier displays stay as they are."""


class Handle(Protocol):
    """IPython's handle of a display."""

    def update(self, obj: Any, **kwargs: Any) -> None:
        """Replace the output."""


class SavedOutputs:
    """Outputs of an advisor.

    An update would replace the live view in an application without the lab extension. So outputs are written only after
    a view reported that its application keeps it.

    Parameters
    ----------
    bundle
        Data and metadata of the present output.
    """

    def __init__(self, bundle: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> None:
        self._bundle = bundle
        self._handles: list[Handle] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.keeps_views = False

    def add(self, handle: Handle) -> None:
        """Follow the plan in one more output. Without an event loop, outputs stay as they are."""
        self._handles = [*self._handles, handle][-_MOST:]
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    def changed(self) -> None:
        """The plan on screen changed, in any thread."""
        if self.keeps_views and self._handles and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wait)

    def write(self) -> None:
        """Write the present plan into every output."""
        data, metadata = self._bundle()
        for handle in self._handles:
            handle.update(data, metadata=metadata, raw=True)

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None:
            self._timer = self._loop.call_later(QUIET_SECONDS, self.write)
