"""The widget: a recommendation whose controls can be moved."""

from __future__ import annotations

from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

import anywidget
import traitlets as t
from IPython.core.getipython import get_ipython

from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.notebook import workbench
from smp_advisor.notebook.cells import cells
from smp_advisor.notebook.display import show
from smp_advisor.notebook.estimator_panel import pasted
from smp_advisor.notebook.look_ahead import look_ahead
from smp_advisor.notebook.script_panel import checked, fixed
from smp_advisor.notebook.settings import require_settings
from smp_advisor.notebook.static_view import static_html
from smp_advisor.notebook.view_state import control_dicts, recommendation

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.step import Pitfall, Step
    from smp_advisor.libraries.control_codec import Setting
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.notebook.fallback import Fallback
    from smp_advisor.notebook.handshake import Handshake
    from smp_advisor.notebook.view_state import Recommendation

__all__ = ["Advisor"]

VIEW_MIME = "application/vnd.smp-advisor.view+json"
"""Tells the lab extension that the picture beside may stand in for a widget that is gone with its kernel."""

_STATIC = Path(__file__).parents[1] / "static"


class Advisor(anywidget.AnyWidget):
    """Shows `advice`, and lets its settings be moved; what the plan then costs is shown at once.

    Examples
    --------
    >>> advisor = Advisor(advise("10B", "ml.p4d.24xlarge", instance_count=16))  # doctest: +SKIP
    >>> advisor.move(batch_size=32)  # doctest: +SKIP
    >>> print(advisor.cell())  # doctest: +SKIP
    """

    _esm = _STATIC / "widget.js"
    _css = _STATIC / "widget.css"

    _recommendation = t.Dict(help="What stays the same while the controls move.").tag(sync=True)
    _state = t.Dict(help="Where the controls stand, and what that costs.").tag(sync=True)
    _ahead = t.Dict(help="The estimates of all moves from there.").tag(sync=True)
    _request = t.Dict(help="What a view asks for: all settings, or one move from them.").tag(sync=True)

    def __init__(self, advice: Advice) -> None:
        self._bench = workbench.recommended(advice)
        self.handshakes: list[Handshake] = []
        self.fallbacks: list[Fallback] = []
        self._shown_in: int | None = None
        self._served: dict[str, int] = {}
        # Views may speak from another thread than cells run in: JupyterLab sends their messages over a subshell.
        self._turn = RLock()
        super().__init__(
            _recommendation=dict(recommendation(advice)),
            _state=self._as_state(),
            _ahead=dict(look_ahead(advice, self._bench.settings)),
        )
        self.on_msg(self._on_message)

    @property
    def advice(self) -> Advice:
        """The recommendation, whatever the controls say."""
        return self._bench.advice

    @property
    def plan(self) -> Plan:
        """The plan of the controls; the recommended one until they are moved."""
        return self._bench.plan

    @property
    def estimate(self) -> Estimate:
        """What `plan` costs."""
        return self._bench.estimate

    @property
    def steps(self) -> tuple[Step, ...]:
        """The ordered practices behind the recommendation."""
        return self.advice.steps

    @property
    def pitfalls(self) -> tuple[Pitfall, ...]:
        """What the recommendation demands of the script and the data."""
        return self.advice.pitfalls

    @property
    def alternatives(self) -> pd.DataFrame:
        """Other plans, best first, with why they lost."""
        return self.advice.alternatives

    def cells(self, what: str = "job", sdk: str = "auto", **options: Any) -> list[str]:
        """The cells of one kind for `plan`, in the order they are to be run.

        Parameters
        ----------
        what
            ``job`` (training script and the cell that starts it), ``script``, ``local``, ``monitoring``,
            ``permissions`` or ``quota``.
        sdk
            Version of the SageMaker Python SDK to write for: ``v2``, ``v3``, or ``auto``, the one installed.
        options
            Of the job, see `smp_advisor.export.JobOptions`.
        """
        return cells(self.advice, workbench.require(self._bench).plan, what, sdk, **options)

    def cell(self, sdk: str = "auto", **options: Any) -> str:
        """The cell that starts the job of `plan`."""
        return self.advice.cell(sdk, workbench.require(self._bench).plan, **options)

    def script_cell(self) -> str:
        """The cell that writes the training script of `plan`; empty where the script is the user's own."""
        return self.advice.script_cell(workbench.require(self._bench).plan)

    @property
    def recommendation(self) -> Recommendation:
        """What the views show of the advice, as plain data."""
        return cast("Recommendation", self._recommendation)

    @property
    def state(self) -> dict[str, Any]:
        """Where the controls stand, as plain data."""
        return dict(self._state)

    def move(self, **settings: Setting) -> str:
        """Move controls by name, one after the other, and say what the last move did.

        Raises
        ------
        PlanError
            No such control, or the settings exclude each other; the controls then stay where they were.
        """
        with self._turn:
            bench = self._bench
            for name, value in settings.items():
                bench = workbench.move(bench, name, value)
            for name, value in settings.items():
                if bench.settings[name] != value:
                    raise PlanError(f"{name}={value!r} and the others exclude each other: leave one out.")
            self._settle(workbench.require(bench))
            return bench.words

    def reset(self) -> None:
        """Put the controls back to the recommendation."""
        with self._turn:
            self._settle(workbench.recommended(self.advice))

    def _settle(self, bench: workbench.Bench, answers: str = "") -> None:
        stale = bench.settings != self._bench.settings
        self._bench = bench
        self._state = self._as_state(answers)
        # Sent after the state: it is larger, and only the next move needs it.
        if stale:
            self._ahead = dict(look_ahead(self.advice, bench.settings))

    def _as_state(self, answers: str = "") -> dict[str, Any]:
        bench = self._bench
        return {
            "answers": answers,
            "settings": bench.settings,
            "controls": control_dicts(bench.advice, bench.settings),
            "moment": dict(bench.moment),
            "moved": bench.moved,
            "problem": bench.problem,
            "words": bench.words,
        }

    @t.observe("_request")
    def _on_request(self, change: dict[str, Any]) -> None:
        if change["new"]:
            with self._turn:
                self._serve(change["new"])

    def _serve(self, request: dict[str, Any]) -> bool:
        """Do what a view asked for, or say why not; its settings are complete, so that no earlier request matters."""
        identity = str(request.get("id", ""))
        view, _, number = identity.rpartition(":")
        order = int(number) if number.isdigit() else 0
        if order and order <= self._served.get(view, 0):
            # A move comes as a message and as a trait, and traits wait for one another: it may be served already, or
            # a newer one be, which it must not undo.
            return True
        self._served[view] = order
        library = self._bench.advice.plan.library
        try:
            settings = require_settings(request.get("settings"), library)
            moved = str(request.get("moved") or "")
            if "value" in request:
                # The view did not know what the move leads to: what must follow follows here.
                require_settings({**settings, moved: request["value"]}, library)
                bench = workbench.move(workbench.apply(self._bench, settings), moved, request["value"])
            else:
                bench = workbench.apply(self._bench, settings, moved=moved)
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": str(error)})
            return False
        self._settle(bench, answers=identity)
        return True

    def _on_message(self, _: object, content: dict[str, Any], buffers: object) -> None:  # noqa: ARG002 (ipywidgets' name)
        if content.get("kind") == "ready":
            for handshake in self.handshakes:
                handshake.arrived()
        elif content.get("kind") in {"move", "export"}:
            # The controls' values travel with the request: the cell can never lag behind them.
            request = content["request"]
            with self._turn:
                if self._serve(request) and content["kind"] == "export":
                    wanted = str(content.get("what", "job")), str(content.get("sdk", "auto"))
                    self._send_cells(request["id"], *wanted)

        elif content.get("kind") == "check":
            with self._turn:
                found = checked(str(content.get("path", "")), self.plan)
            self.send({"kind": "checked", "id": str(content.get("id", "")), **found})
        elif content.get("kind") == "fix":
            with self._turn:
                found = fixed(content, self.plan)
            self.send({"kind": "checked", "id": str(content.get("id", "")), **found})
        elif content.get("kind") == "paste":
            shell = get_ipython()
            names = {} if shell is None else shell.user_ns
            with self._turn:
                read = pasted(str(content.get("text", "")), self.advice, self.plan, names)
            self.send({"kind": "pasted", "id": str(content.get("id", "")), **read})

    def _send_cells(self, identity: str, what: str, sdk: str) -> None:
        try:
            sources = self.cells(what, sdk)
        except AdvisorError as error:
            self.send({"kind": "failed", "id": identity, "text": str(error)})
        else:
            self.send({"kind": "cells", "id": identity, "settings": self._bench.settings, "sources": sources})

    def _html(self) -> str:
        return static_html(self.recommendation, self._bench.moment)

    def _text(self) -> str:
        if self.plan == self.advice.plan:
            return str(self.advice)
        return f"{self.advice}\n\nMoved to {self.plan}\n{self._bench.words}"

    def __repr__(self) -> str:
        return f"Advisor({self.advice.model.name!r}, {self.plan!r})"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle or ({}, {})
        own = {VIEW_MIME: {"model_id": self.model_id}, "text/html": self._html(), "text/plain": self._text()}
        return {**data, **own}, metadata

    def show_now(self) -> None:
        """Display the advisor; as the value of the same cell it is then not displayed a second time."""
        show(self)
        self._shown_in = _execution_count()

    def _ipython_display_(self, **_: object) -> None:
        shown_in, self._shown_in = self._shown_in, None
        if shown_in is None or shown_in != _execution_count():
            show(self)


def _execution_count() -> int | None:
    shell = get_ipython()
    return None if shell is None else shell.execution_count
