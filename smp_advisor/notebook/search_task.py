"""A search in a thread of its own, with progress and a way to stop it, so that the kernel stays free."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.advice import Advice

__all__ = ["Progress", "SearchTask"]

_REPORTS_PER_SECOND = 5.0

Progress = dict[str, Any]
"""``done`` and ``total`` parts, ``text`` of the next part, and ``seconds_left``, None while unknown."""


class _CanceledError(Exception):
    """Ends a search from its progress."""


class SearchTask:
    """One search. A canceled one has no result.

    Parameters
    ----------
    search
        Makes the advice; its argument is called with the progress.
    on_progress
        Called at most five times per second, in the search's thread.
    on_done
        Called once, in the search's thread, with the advice or the error.

    Examples
    --------
    >>> results = []
    >>> task = SearchTask(lambda report: 42, print, results.append)  # doctest: +SKIP
    >>> task.join()  # doctest: +SKIP
    """

    def __init__(
        self,
        search: Callable[[Callable[[float, float, str], None]], Advice],
        on_progress: Callable[[Progress], None],
        on_done: Callable[[Advice | AdvisorError], None],
    ) -> None:
        self._search, self._on_progress, self._on_done = search, on_progress, on_done
        self._stop = Event()
        self._started = time.monotonic()
        self._reported = 0.0
        self._thread = Thread(target=self._run, name="smp-advisor-search", daemon=True)

    def start(self) -> None:
        """Start the search."""
        self._thread.start()

    def cancel(self) -> None:
        """End the search at its next step, and drop its result."""
        self._stop.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the search."""
        self._thread.join(seconds)

    def _run(self) -> None:
        result: Advice | AdvisorError
        try:
            result = self._search(self._report)
        except _CanceledError:
            return
        except AdvisorError as error:
            result = error
        except Exception as error:  # noqa: BLE001 - the page must not wait for ever
            result = AdvisorError(f"The search failed: {type(error).__name__}: {error}")
        if not self._stop.is_set():
            self._on_done(result)

    def _report(self, done: float, total: float, text: str) -> None:
        if self._stop.is_set():
            raise _CanceledError
        now = time.monotonic()
        if now - self._reported < 1 / _REPORTS_PER_SECOND and done < total:
            return
        self._reported = now
        left = (now - self._started) * (total - done) / done if done else None
        self._on_progress({"done": done, "total": total, "text": text, "seconds_left": left})
