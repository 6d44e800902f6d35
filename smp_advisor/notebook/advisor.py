"""The widget: a recommendation with controls."""

from __future__ import annotations

from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

import anywidget
import traitlets as t
from IPython.core.getipython import get_ipython

from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.guidance.ladder_html import ladder_html
from smp_advisor.live import control_state
from smp_advisor.live.labels import with_labels
from smp_advisor.live.settings import require_settings
from smp_advisor.notebook.cells import cells
from smp_advisor.notebook.display import show
from smp_advisor.notebook.estimator_panel import pasted
from smp_advisor.notebook.look_ahead import look_ahead
from smp_advisor.notebook.panels import panel_data
from smp_advisor.notebook.script_panel import checked, fixed
from smp_advisor.notebook.static_view import static_html
from smp_advisor.notebook.view_state import control_dicts, ladder_rows, recommendation, snapshot_of

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.ladder import Ladder
    from smp_advisor.guidance.rank_map import RankTable
    from smp_advisor.guidance.step import Pitfall, Step
    from smp_advisor.libraries.control_codec import Setting
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.notebook.fallback import Fallback
    from smp_advisor.notebook.handshake import Handshake
    from smp_advisor.notebook.view_state import Recommendation

__all__ = ["Advisor"]

VIEW_MIME = "application/vnd.smp-advisor.view+json"
"""Marks an output of the advisor. The lab extension shows its picture if the kernel with the widget is gone."""

_STATIC = Path(__file__).parents[1] / "static"


class Advisor(anywidget.AnyWidget):
    """Shows a recommendation with controls for its settings, and the estimate of the plan that they make.

    Examples
    --------
    >>> advisor = Advisor(advise("10B", "ml.p4d.24xlarge", instance_count=16))  # doctest: +SKIP
    >>> advisor.move(batch_size=32)  # doctest: +SKIP
    >>> print(advisor.cell())  # doctest: +SKIP
    """

    _esm = _STATIC / "widget.js"
    _css = _STATIC / "widget.css"

    _recommendation = t.Dict(help="Data that no control changes.").tag(sync=True)
    _state = t.Dict(help="Values of the controls, and the estimate of their plan.").tag(sync=True)
    _ahead = t.Dict(help="Estimates of all moves from these values.").tag(sync=True)
    _request = t.Dict(help="Request of a view: all settings, or one move from them.").tag(sync=True)

    def __init__(self, advice: Advice) -> None:
        self._advice = advice
        self._controls = control_state.recommended(advice)
        self.handshakes: list[Handshake] = []
        self.fallbacks: list[Fallback] = []
        self._shown_in: int | None = None
        self._served: dict[str, int] = {}
        # Messages of views may arrive in another thread than that of the cells: JupyterLab sends them over a subshell.
        self._turn = RLock()
        super().__init__(
            _recommendation=dict(recommendation(advice)),
            _state=self._as_state(),
            _ahead=dict(look_ahead(advice, self._controls.settings)),
        )
        self.on_msg(self._on_message)

    @property
    def advice(self) -> Advice:
        """The recommendation, whatever the values of the controls."""
        return self._advice

    @property
    def plan(self) -> Plan:
        """Plan of the controls; the recommended plan until they are moved."""
        return self._controls.plan

    @property
    def estimate(self) -> Estimate:
        """Estimate of `plan`."""
        return self._controls.estimate

    @property
    def steps(self) -> tuple[Step, ...]:
        """The ordered practices behind the recommendation."""
        return self.advice.steps

    @property
    def pitfalls(self) -> tuple[Pitfall, ...]:
        """Requirements of the recommendation for the script and the data."""
        return self.advice.pitfalls

    @property
    def alternatives(self) -> pd.DataFrame:
        """Other plans, best first, with the reason against each."""
        return self.advice.alternatives

    def ladder(self) -> Ladder:
        """AWS's techniques in order, up to `plan`, with memory, fit, step time and decision."""
        return self._controls.advice.ladder(self.plan)

    def ranks(self) -> RankTable:
        """Stage, slices, shard and replica of every GPU with `plan`."""
        return self._controls.advice.ranks(self.plan)

    def cells(self, what: str = "job", sdk: str = "auto", **options: Any) -> list[str]:
        """Cells of one kind for `plan`, in the order in which they run.

        Parameters
        ----------
        what
            ``job`` (training script and the cell that starts it), ``script``, ``local``, ``monitoring``,
            ``permissions`` or ``quota``.
        sdk
            Version of the SageMaker Python SDK to write for: ``v2``, ``v3``, or ``auto``, the one installed.
        options
            Options of the job, see `smp_advisor.export.JobOptions`.
        """
        return cells(self.advice, control_state.require(self._controls).plan, what, sdk, **options)

    def cell(self, sdk: str = "auto", **options: Any) -> str:
        """The cell that starts the job of `plan`."""
        return self.advice.cell(sdk, control_state.require(self._controls).plan, **options)

    def script_cell(self) -> str:
        """The cell that writes the training script of `plan`; empty if you use a script of your own."""
        return self.advice.script_cell(control_state.require(self._controls).plan)

    @property
    def recommendation(self) -> Recommendation:
        """The recommendation as plain data, for the views."""
        return cast("Recommendation", self._recommendation)

    @property
    def state(self) -> dict[str, Any]:
        """Values of the controls and the estimate of their plan, as plain data."""
        return dict(self._state)

    def move(self, **settings: Setting) -> str:
        """Move controls by name, one after the other, and return a summary of the last change.

        Raises
        ------
        PlanError
            There is no such control, or the settings exclude each other. The controls then keep their values.
        """
        with self._turn:
            state = self._controls
            for name, value in settings.items():
                state = control_state.move(state, name, value)
            for name, value in settings.items():
                if state.settings[name] != value:
                    raise PlanError(f"{name}={value!r} and the other settings exclude each other: leave one out.")
            self._settle(control_state.require(state))
            return state.summary

    def reset(self) -> None:
        """Set the controls to the recommendation."""
        with self._turn:
            self._settle(control_state.recommended(self.advice))

    def _settle(self, state: control_state.ControlState, answers: str = "") -> None:
        stale = state.settings != self._controls.settings
        self._controls = state
        self._state = self._as_state(answers)
        # Sent after the state, because it is larger and only the next move needs it.
        if stale:
            self._ahead = dict(look_ahead(state.advice, state.settings))

    def _as_state(self, answers: str = "") -> dict[str, Any]:
        state = self._controls
        return {
            "answers": answers,
            "settings": state.settings,
            "controls": control_dicts(state.advice, state.settings),
            "snapshot": dict(snapshot_of(state)),
            "ladder": dict(ladder_rows(self.ladder())),
            "moved": state.moved,
            "problem": with_labels(state.advice.plan.library, state.problem),
            "repairs": control_state.repairs_of(state),
            "summary": state.summary,
        }

    @t.observe("_request")
    def _on_request(self, change: dict[str, Any]) -> None:
        if change["new"]:
            with self._turn:
                self._serve(change["new"])

    def _serve(self, request: dict[str, Any]) -> bool:
        """Apply the request of a view, or send it the reason against it.

        Requests contain all settings, so that no earlier one matters.
        """
        identity = str(request.get("id", ""))
        view, _, number = identity.rpartition(":")
        order = int(number) if number.isdigit() else 0
        if order and order <= self._served.get(view, 0):
            # A move arrives both as a message and as a trait, and traits wait for one another. This one or a newer one,
            # which it must not undo, may already be applied.
            return True
        self._served[view] = order
        library = self._controls.advice.plan.library
        try:
            settings = require_settings(request.get("settings"), library)
            moved = str(request.get("moved") or "")
            if "value" in request:
                # The view does not know the dependent settings of this move: they are set here.
                require_settings({**settings, moved: request["value"]}, library)
                state = control_state.move(control_state.apply(self._controls, settings), moved, request["value"])
            else:
                state = control_state.apply(self._controls, settings, moved=moved)
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": with_labels(library, str(error))})
            return False
        self._settle(state, answers=identity)
        return True

    def _on_message(self, _: object, content: dict[str, Any], buffers: object) -> None:  # noqa: ARG002 (ipywidgets' name)
        if content.get("kind") == "ready":
            for handshake in self.handshakes:
                handshake.arrived()
        elif content.get("kind") in {"move", "export"}:
            # The request contains the values of the controls, so the cell always matches them.
            request = content["request"]
            with self._turn:
                if self._serve(request) and content["kind"] == "export":
                    kind, sdk = str(content.get("what", "job")), str(content.get("sdk", "auto"))
                    self._send_cells(request["id"], kind, sdk)

        elif content.get("kind") == "panel":
            self._send_panel(content)
        elif content.get("kind") == "check":
            with self._turn:
                report = checked(str(content.get("path", "")), self.plan)
            self.send({"kind": "checked", "id": str(content.get("id", "")), **report})
        elif content.get("kind") == "fix":
            with self._turn:
                report = fixed(content, self.plan)
            self.send({"kind": "checked", "id": str(content.get("id", "")), **report})
        elif content.get("kind") == "paste":
            shell = get_ipython()
            names = {} if shell is None else shell.user_ns
            with self._turn:
                report = pasted(str(content.get("text", "")), self.advice, self.plan, names)
            self.send({"kind": "pasted", "id": str(content.get("id", "")), **report})

    def _send_panel(self, content: dict[str, Any]) -> None:
        """Data of a panel for the settings of the request, whatever the controls are by now."""
        identity, name = str(content.get("id", "")), str(content.get("name", ""))
        library = self._controls.advice.plan.library
        try:
            with self._turn:
                state = control_state.apply(self._controls, require_settings(content.get("settings"), library))
            data = panel_data(name, state.advice, control_state.require(state).plan)
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": with_labels(library, str(error))})
        else:
            self.send({"kind": "panel", "id": identity, "name": name, "settings": state.settings, "data": dict(data)})

    def _send_cells(self, identity: str, what: str, sdk: str) -> None:
        try:
            sources = self.cells(what, sdk)
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": with_labels(self.plan.library, str(error))})
        else:
            self.send({"kind": "cells", "id": identity, "settings": self._controls.settings, "sources": sources})

    def _html(self) -> str:
        return static_html(self.recommendation, snapshot_of(self._controls), ladder_html(self.ladder()))

    def _text(self) -> str:
        if self.plan == self.advice.plan:
            return str(self.advice)
        return f"{self.advice}\n\nCurrent plan: {self.plan}\n{self._controls.summary}\n{self.ladder()}"

    def __repr__(self) -> str:
        return f"Advisor({self.advice.model.name!r}, {self.plan!r})"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle or ({}, {})
        own = {VIEW_MIME: {"model_id": self.model_id}, "text/html": self._html(), "text/plain": self._text()}
        return {**data, **own}, metadata

    def show_now(self) -> None:
        """Display the advisor. As the value of the same cell, it is not displayed a second time."""
        show(self)
        self._shown_in = _execution_count()

    def _ipython_display_(self, **_: object) -> None:
        shown_in, self._shown_in = self._shown_in, None
        if shown_in is None or shown_in != _execution_count():
            show(self)


def _execution_count() -> int | None:
    shell = get_ipython()
    return None if shell is None else shell.execution_count
