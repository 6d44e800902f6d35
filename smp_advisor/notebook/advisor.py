"""The widget: a recommendation with controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anywidget
import traitlets as t
from IPython.core.getipython import get_ipython

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.arguments.signatures import checked_class
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.checks import checked, pasted
from smp_advisor.notebook.display import VIEW_MIME, SavedOutputs, show, static_html
from smp_advisor.notebook.panels import PanelRequests, perform, session_steps
from smp_advisor.notebook.view_state import control_dicts, look_ahead, recommendation, snapshot_of
from smp_advisor.notebook.workload_fields import Searching
from smp_advisor.session import Advice, control_state
from smp_advisor.session.cells import cells_of
from smp_advisor.session.controls import repairs_of
from smp_advisor.session.settings import require_name, require_settings, with_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Change


_STATIC = Path(__file__).parents[1] / "static"
_OF_THE_KERNEL = frozenset({"_recommendation", "_state", "_controls", "_older", "_esm", "_css"})
"""Traits that no view writes."""


@checked_class
class Advisor(anywidget.AnyWidget):
    """Shows live advice with controls for its settings, and the estimate of the plan that they make.

    The plan on screen belongs to `advice`, which other widgets of the same advice show, too. Attributes of the advice
    such as ``estimate``, ``steps``, ``ladder``, ``move``, ``reset``, ``undo`` and ``compare`` are attributes of the
    widget, for the plan on screen.

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
    _controls: t.List[Any] = t.List(help="The controls of the plan, with their positions.").tag(sync=True)
    _older = t.Unicode("", help="Why another view is the newer one; empty if none is.").tag(sync=True)
    _request = t.Dict(help="Request of a view: all settings, or one move from them.").tag(sync=True)

    def __init__(self, advice: Advice | Recommendation) -> None:
        self._advice = advice if isinstance(advice, Advice) else Advice(advice)
        self._drawn = self._advice.recommended
        self._answering = ""
        self.variable = ""
        """Name of a variable that has or had this advice."""
        self.outputs = SavedOutputs(self)
        self._shown_in: int | None = None
        self._ahead_of: tuple[object, object] | None = None
        self._served: dict[str, int] = {}
        # Messages of views may arrive in another thread than that of the cells: JupyterLab sends them over a subshell.
        self._turn = self._advice.turn
        with self._turn:
            super().__init__(
                _recommendation=recommendation(self._drawn),
                _state=self._as_state(),
                _controls=control_dicts(self._now.advice, self._now.valid_settings),
            )
            self._advice.observe(self._on_change)
        self._searching = Searching(self._advice, self.send)
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "act": self._perform,
            "search": self._searching.start,
            "cancel": self._searching.cancel,
            "panel": PanelRequests(self._advice, self.send).serve,
            "check": self._send_checked,
            "paste": self._send_checked,
        }
        self.on_msg(self._on_message)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Advice, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._advice, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(Advice) if name[0] != "_")})

    @property
    def advice(self) -> Advice:
        """The live advice: the plan on screen and its recommendation."""
        return self._advice

    @property
    def plan(self) -> Plan:
        """The plan on screen; the recommended plan until the controls are moved. Set it to show another."""
        return self._advice.plan

    @plan.setter
    def plan(self, plan: Plan | int) -> None:
        self._advice.plan = plan

    @property
    def _now(self) -> control_state.ControlState:
        return self._advice.controls

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
        return cells_of(self.advice, control_state.require(self._now).plan, what, sdk, **options)

    def cell(self, sdk: str = "auto", **options: Any) -> str:
        """Return the cell that starts the job of `plan`."""
        return self.advice.cell(sdk, control_state.require(self._now).plan, **options)

    def script_cell(self) -> str:
        """Return the cell that writes the training script of `plan`; empty if you use a script of your own."""
        return self.advice.script_cell(control_state.require(self._now).plan)

    @property
    def recommendation(self) -> dict[str, Any]:
        """The recommendation as plain data, for the views."""
        return dict(self._recommendation)

    @property
    def state(self) -> dict[str, Any]:
        """Values of the controls and the estimate of their plan, as plain data."""
        return dict(self._state)

    def _on_change(self, _: Change) -> None:
        """Send the plan on screen to the views, and soon to the saved outputs."""
        self.outputs.changed()
        if self._advice.recommended is not self._drawn:
            self._drawn = self._advice.recommended
            with self.hold_sync():  # a view draws another recommendation together with its state
                self._recommendation = recommendation(self._drawn)
                self._set_state()
        else:
            self._set_state()
        # Sent after the state, because it is larger and only the next move needs it.
        if self._ahead_of is not None and self._ahead_of != self._ahead_key:
            self._send_ahead()

    def _set_state(self) -> None:
        self._controls = control_dicts(self._now.advice, self._now.valid_settings)
        self._state = self._as_state(self._answering)

    @property
    def _ahead_key(self) -> tuple[object, object]:
        return id(self._now.advice), self._now.valid_settings

    def _send_ahead(self) -> None:
        """Send the plans of all moves from the settings on screen; none before the first view is there."""
        self._ahead_of, base = self._ahead_key, self._now.valid_settings
        self.send({"kind": "ahead", "id": "", "base": base, "by": look_ahead(self._now.advice, base)})

    def _as_state(self, answers: str = "") -> dict[str, Any]:
        state = self._now
        return {
            "answers": answers,
            "settings": state.settings,
            "snapshot": snapshot_of(state),
            "moved": state.moved,
            "problem": with_labels(state.advice.plan.library, state.problem),
            "repairs": repairs_of(state),
            "pins": list(self._advice.pins),
            "summary": state.summary,
            "rehearsed": self._advice.rehearsed,
            "history": session_steps(self._advice),
        }

    @t.observe("_request")
    def _on_request(self, change: dict[str, Any]) -> None:
        if change["new"]:
            with self._turn:
                self._serve(change["new"])

    def _serve(self, request: object) -> bool:
        """Apply a view's request, which has all settings: no earlier one matters; or send the reason against it."""
        if not isinstance(request, dict):
            self.send({"kind": "failed", "id": "", "text": "The page sent a request without settings: reload it."})
            return False
        identity = str(request.get("id", ""))
        view, _, digits = identity.rpartition(":")
        order = number if isinstance(number := digits_as_number(digits), int) else 0
        if order and order <= self._served.get(view, 0):
            # A move arrives both as a message and as a trait, and traits wait for one another. This one or a newer one,
            # which it must not undo, may already be applied.
            return True
        self._served[view] = order
        library = self._now.advice.plan.library
        try:
            settings = require_settings(request.get("settings"), library)
            moved = str(request.get("moved") or "")
            if moved:
                require_name(moved, library)
            if "value" in request:
                # The view does not know the dependent settings of this move: they are set here.
                require_name(moved, library)
                require_settings({**settings, moved: request["value"]}, library)
                state = control_state.move(control_state.apply(self._now, settings), moved, request["value"])
            else:
                state = control_state.apply(self._now, settings, moved=moved)
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": with_labels(library, str(error))})
            return False
        gesture = request.get("gesture")
        self._answer(identity, lambda: self._advice.settle(state, gesture=f"{view}:{gesture}" if gesture else ""))
        return True

    def _answer(self, identity: str, action: Callable[[], object]) -> None:
        """Change the plan on screen for a view, which waits for the state with the identity of its request."""
        self._answering = identity
        try:
            action()
        finally:
            self._answering = ""

    def _perform(self, content: dict[str, Any]) -> None:
        """An action of a view on the history or the alternatives."""
        identity = str(content.get("id", ""))
        try:
            with self._turn:
                self._answer(identity, lambda: perform(self._advice, content))
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": with_labels(self.plan.library, str(error))})

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """A change by a view. Views write requests only; the rest is the kernel's."""
        own = {name: value for name, value in sync_data.items() if name not in _OF_THE_KERNEL}
        if not isinstance(own.get("_request", {}), dict):
            del own["_request"]
        super().set_state(own)

    def _on_message(self, _: object, content: object, buffers: object) -> None:  # noqa: ARG002 (ipywidgets' name)
        if not isinstance(content, dict):
            return
        kind = str(content.get("kind"))
        if kind == "ready":
            self.outputs.arrived(keeps_views=content.get("keeps") is True)
            with self._turn:
                self._send_ahead()
        elif kind == "again":  # the answer was lost: a busy server drops messages
            with self._turn:
                state = self._as_state(str(content.get("id", "")))
                self._state = {**state, "again": self._state.get("again", 0) + 1}
        elif kind in {"move", "export"}:
            # The request contains the values of the controls, so the cell always matches them.
            with self._turn:
                if self._serve(content.get("request")) and kind == "export":
                    self._send_cells(content)
        elif handler := self._handlers.get(kind):
            handler(content)

    def _send_checked(self, content: dict[str, Any]) -> None:
        kind, text, shell = content["kind"], str(content.get("text", "")), get_ipython()
        with self._turn:
            if kind == "paste":
                report = pasted(text, self.advice, self.plan, {} if shell is None else shell.user_ns)
            else:
                report = checked(text, self.plan)
        self.send({"kind": "checked", "id": str(content.get("id", "")), **report})

    def _send_cells(self, content: dict[str, Any]) -> None:
        identity, region = str(content["request"].get("id", "")), str(content.get("region", "")) or None
        try:
            sources = self.cells(str(content.get("what", "job")), str(content.get("sdk", "auto")), region=region)
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": with_labels(self.plan.library, str(error))})
        else:
            self.send({"kind": "cells", "id": identity, "settings": self._now.settings, "sources": sources})

    def __repr__(self) -> str:
        return repr(self.advice).replace("Advice", "Advisor", 1)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle or ({}, {})
        html = static_html(self._advice, self.recommendation, snapshot_of(self._now))
        text = str(self._advice) if self._advice.is_recommended else f"{self._advice}\n\n{self.ladder()}"
        own = {VIEW_MIME: {"model_id": self.model_id}, "text/html": html, "text/plain": text}
        return {**data, **own}, metadata

    def compare_with(self, names: Mapping[str, Any]) -> None:
        """Mark the views as older if their variable has another advice now."""
        variable = next((n for n, of in names.items() if n[0] != "_" and (of is self or of is self._advice)), "")
        self.variable = variable or self.variable
        newer = isinstance(names.get(self.variable), Advisor | Advice) and not variable
        self._older = f"Older: {self.variable} holds another advice now." if newer else ""

    def show_now(self) -> None:
        """Display the advisor. As the value of the same cell, it is not displayed a second time."""
        show(self)
        self._shown_in = _execution_count()

    def _ipython_display_(self, **_: object) -> None:
        shown_in, self._shown_in = self._shown_in, None
        if shown_in is None or shown_in != _execution_count():
            show(self)


_advisors: WeakValueDictionary[int, Advisor] = WeakValueDictionary()
"""The widget of each live advice by its identity: the widget holds the advice."""


def advisor_of(advice: Advice | Recommendation) -> Advisor:
    """Return the widget of an advice. Displayed again, it has the same widget, so its views stay alike."""
    if not isinstance(advice, Advice):
        return Advisor(advice)
    advisor = _advisors.get(id(advice))
    if advisor is None or advisor.comm is None:  # without a comm, it was closed
        advisor = _advisors[id(advice)] = Advisor(advice)
    return advisor


def _execution_count() -> int | None:
    shell = get_ipython()
    return None if shell is None else shell.execution_count
