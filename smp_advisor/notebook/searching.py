"""Searches of a view: a changed workload is searched in a thread, with progress, a way to cancel, and ways out."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.live.labels import with_labels
from smp_advisor.live.settings import require_name, require_settings
from smp_advisor.notebook.search_task import SearchTask
from smp_advisor.notebook.workload_fields import changes_of, ways_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Settings
    from smp_advisor.live import LiveAdvice
    from smp_advisor.notebook.search_task import Progress

__all__ = ["Searching"]


class Searching:
    """The search of an advice, of which there is at most one: a newer one replaces it.

    Parameters
    ----------
    advice
        The live advice that shows the result.
    send
        Sends a message to all views.
    """

    def __init__(self, advice: LiveAdvice, send: Callable[[dict[str, Any]], object]) -> None:
        self._advice, self._send = advice, send
        self._task: SearchTask | None = None
        self._number = 0
        self._lock = Lock()

    def start(self, content: Mapping[str, Any]) -> None:
        """Search the workload of a message: ``{"id": ..., "workload": {field: text}}``."""
        identity = str(content.get("id", ""))
        with self._lock:
            self._number += 1
            number = self._number
            if self._task is not None:
                self._task.cancel()
            workload = content.get("workload")
            try:
                pins = _pins_of(content.get("pin"), self._advice)
                changes = changes_of(self._advice.recommended, workload if isinstance(workload, dict) else {})
            except AdvisorError as error:
                self._answer(identity, error)
                return
            if not changes and not content.get("again"):
                self._answer(identity, None)
                return
            search = self._advice.search(changes, pins)

            def done(result: Advice | AdvisorError) -> None:
                with self._advice.turn:
                    if number != self._number:
                        return
                    if isinstance(result, AdvisorError):
                        self._answer(identity, result)
                    else:
                        self._advice.renew(result, search.summary(result), pins=search.pins)
                        self._answer(identity, None)

            self._task = SearchTask(
                lambda report: search.run(on_progress=report), lambda progress: self._report(identity, progress), done
            )
            self._report(identity, {"done": 0, "total": 0, "text": "", "seconds_left": None})
            self._task.start()

    def cancel(self, content: Mapping[str, Any] | None = None) -> None:
        """End the search. The advice stays as it is."""
        del content
        with self._lock:
            self._number += 1
            if self._task is not None:
                self._task.cancel()
            self._send({"kind": "searched", "id": "", "problem": "", "ways": []})

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the present search."""
        task = self._task
        if task is not None:
            task.join(seconds)

    def _report(self, identity: str, progress: Progress) -> None:
        self._send({"kind": "searching", "id": identity, **progress})

    def _answer(self, identity: str, error: AdvisorError | None) -> None:
        problem = "" if error is None else with_labels(self._advice.plan.library, str(error))
        ways = error.ways_out if isinstance(error, NoPlanFitsError) else None
        offers = [] if ways is None else ways_of(self._advice.recommended, ways)
        self._send({"kind": "searched", "id": identity, "problem": problem, "ways": offers})


def _pins_of(pin: object, advice: LiveAdvice) -> Settings:
    """The setting that a message pins at a value: ``{"name": ..., "value": ...}``; none without one.

    Raises
    ------
    AdvisorError
        There is no such setting, or the value has the wrong type.
    """
    if not isinstance(pin, dict):
        return {}
    name, library = str(pin.get("name")), advice.plan.library
    require_name(name, library)
    require_settings({**advice.controls.settings, name: pin.get("value")}, library)
    return {name: pin["value"]}
