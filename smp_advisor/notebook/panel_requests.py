"""Answers to the views' requests for panels: at once, or from a thread if the panel takes seconds."""

from __future__ import annotations

from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.live import control_state
from smp_advisor.live.labels import with_labels
from smp_advisor.live.settings import require_settings
from smp_advisor.notebook.panels import SLOW_PANELS, panel_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.live import LiveAdvice
    from smp_advisor.live.control_state import ControlState

__all__ = ["PanelRequests"]


class PanelRequests:
    """Requests for panels of one advisor.

    Parameters
    ----------
    advice
        The live advice with the controls.
    send
        Sends a message to all views.
    """

    def __init__(self, advice: LiveAdvice, send: Callable[[dict[str, Any]], object]) -> None:
        self._advice, self._send = advice, send
        # One slow panel at a time: a later request for the same data then takes it from the first.
        self._slow = Lock()

    def serve(self, content: Mapping[str, Any]) -> None:
        """Send the data for the settings of the request, whatever the controls are by then."""
        identity, name = str(content.get("id", "")), str(content.get("name", ""))
        controls, options = self._advice.controls, content.get("options")
        library = controls.advice.plan.library
        try:
            settings = require_settings(content.get("settings"), library)
            state = control_state.require(control_state.apply(controls, settings))
        except AdvisorError as error:
            self._fail(identity, library, error)
            return
        if name in SLOW_PANELS:
            self._send({"kind": "started", "id": identity})
            Thread(target=self._compute_slowly, args=(identity, name, state, options), daemon=True).start()
        else:
            self._compute(identity, name, state, options)

    def _compute_slowly(self, identity: str, name: str, state: ControlState, options: object) -> None:
        with self._slow:
            self._compute(identity, name, state, options)

    def _compute(self, identity: str, name: str, state: ControlState, options: object) -> None:
        try:
            data = panel_data(name, self._advice, state, options)
        except AdvisorError as error:
            self._fail(identity, state.advice.plan.library, error)
        else:
            self._send({"kind": "panel", "id": identity, "name": name, "settings": state.settings, "data": dict(data)})

    def _fail(self, identity: str, library: str, error: AdvisorError) -> None:
        self._send({"kind": "failed", "id": identity, "text": with_labels(library, str(error))})
