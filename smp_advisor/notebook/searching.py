"""Searches from the page: in a thread, with progress and cancel."""

from __future__ import annotations

import time
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.live import control_state
from smp_advisor.advice.live.search_again import changed
from smp_advisor.advice.live.settings import require_name, require_settings, with_labels
from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.notebook.workload_fields import changes_of, ways_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.advice.live import LiveAdvice
    from smp_advisor.advice.live.control_state import ControlState
    from smp_advisor.libraries.library import Settings
    from smp_advisor.libraries.plan import Plan


_REPORTS_PER_SECOND = 5.0

Progress = dict[str, Any]
"""``done`` and ``total`` parts, ``text`` of the next part, and ``seconds_left``, None while unknown."""


class _CanceledError(Exception):
    """Ends a search from its progress."""


class SearchTask:
    """One search in a thread; a canceled one has no result. `on_progress` is called at most five times per second."""

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


class Searching:
    """The search of an advice, of which there is at most one: a newer one replaces it."""

    def __init__(self, advice: LiveAdvice, send: Callable[[dict[str, Any]], object]) -> None:
        self._advice, self._send = advice, send
        self._task: SearchTask | None = None
        self._number = 0
        self._ways: list[dict[str, Any]] = []
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
                # A way out that no field shows: the kernel has its values.
                way = content.get("way")
                changes |= self._ways[way] if isinstance(way, int) and 0 <= way < len(self._ways) else {}
                kept = None
                if isinstance(fit := content.get("fit"), int):
                    offers = ways_to_fit(self._advice, self._state_of(content))
                    if not 0 <= fit < len(offers):
                        raise AdvisorError("The settings have changed: choose again.")  # noqa: TRY301 (answered below)
                    changes |= offers[fit]["changes"]
                    kept = offers[fit]["plan"]
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
                        state = _with(result, kept)
                        summary = search.summary(result if state is None else state.advice)
                        self._advice.renew(result, summary, state=state, pins=search.pins)
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

    def _state_of(self, content: Mapping[str, Any]) -> ControlState:
        controls = self._advice.controls
        settings = require_settings(content.get("settings"), controls.advice.plan.library)
        return control_state.require(control_state.apply(controls, settings))

    def _report(self, identity: str, progress: Progress) -> None:
        self._send({"kind": "searching", "id": identity, **progress})

    def _answer(self, identity: str, error: AdvisorError | None) -> None:
        problem = "" if error is None else with_labels(self._advice.plan.library, str(error))
        ways = error.ways_out if isinstance(error, NoPlanFitsError) else None
        offers = [] if ways is None else ways_of(self._advice.recommended, ways)
        self._ways = [offer.pop("changes") for offer in offers]
        for way in offers:
            del way["plan"]
        self._send({"kind": "searched", "id": identity, "problem": problem, "ways": offers})


def ways_to_fit(advice: LiveAdvice, state: ControlState) -> list[dict[str, Any]]:
    """Changes of the request after which the plan of the controls fits, with all its settings."""
    try:
        changed(advice.recommended, {"library": state.advice.plan.library}, state.valid_settings)
    except NoPlanFitsError as error:
        return [] if error.ways_out is None else ways_of(advice.recommended, error.ways_out)
    except AdvisorError:
        return []
    return []


def _with(result: Advice, plan: Plan | None) -> ControlState | None:
    """The controls of another recommendation at a plan; None if it has no such plan."""
    if plan is None or plan.library != result.plan.library:
        return None
    try:
        return control_state.adopt(control_state.recommended(result), plan)
    except AdvisorError:
        return None


def _pins_of(pin: object, advice: LiveAdvice) -> Settings:
    """The setting that a message pins at a value: ``{"name": ..., "value": ...}``; none without one."""
    if not isinstance(pin, dict):
        return {}
    name, library = str(pin.get("name")), advice.plan.library
    require_name(name, library)
    require_settings({**advice.controls.settings, name: pin.get("value")}, library)
    return {name: pin["value"]}
