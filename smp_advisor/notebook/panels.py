"""Panels of the page and the requests for them: charts, comparison, reasons, session."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.ladder import ladder_html, reasons_of
from smp_advisor.advice.rank_map import rank_map
from smp_advisor.advice.report import ladder_of
from smp_advisor.charts import chart_of
from smp_advisor.charts.plans import clusters_chart, points_of
from smp_advisor.charts.step import modules_chart
from smp_advisor.core.words import escape
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.notebook.figures import FITS, fit, headlines, memory
from smp_advisor.notebook.view_state import terms_of, uncited_hardware
from smp_advisor.notebook.workload_fields import suggestions, ways_to_fit
from smp_advisor.runs.sources import LocalFolder
from smp_advisor.session import control_state
from smp_advisor.session.advice import ON_SCREEN, RECOMMENDED
from smp_advisor.session.options import named_values
from smp_advisor.session.settings import require_settings, with_labels
from smp_advisor.session.written import html_sections, html_sources

if TYPE_CHECKING:
    from smp_advisor.runs.watching import Run
    from smp_advisor.session import Advice
    from smp_advisor.session.control_state import ControlState, Entry


Panel = Callable[["Advice", "ControlState", Mapping[str, object]], Mapping[str, object]]


def modules(_: Advice, state: ControlState, options: Mapping[str, object]) -> Mapping[str, object]:
    """The modules of a profile by the measure ``by``."""
    by = options.get("by")
    return modules_chart(state.advice, state.estimate, by if isinstance(by, int) else 0).plain(options.get("width"))


def clusters(_: Advice, state: ControlState, options: Mapping[str, object]) -> dict[str, Any]:
    """Days against dollars. `options` may have further ``instances``: names of types between commas."""
    names = str(options.get("instances") or "").split(",")
    return clusters_chart(state.advice, state.estimate, [name for name in names if name]).plain(options.get("width"))


_SHOWN = 40
"""Number of entries of the history around the present one in the tab."""


def compare(advice: Advice, state: ControlState, options: Mapping[str, object]) -> Mapping[str, object]:
    """Two plans next to each other, the snapshots and the history; `first` and `second` of the options are names."""
    names = [RECOMMENDED, ON_SCREEN, *advice.snapshots]
    first, second = (
        chosen if isinstance(chosen := options.get(end), str) and chosen in names else default
        for end, default in (("first", RECOMMENDED), ("second", ON_SCREEN))
    )
    history, position = advice.history, len(advice.history) - 1 - advice.undone
    start = min(max(position - _SHOWN // 2, 0), max(len(history) - _SHOWN, 0))
    return {
        "plans": names,
        "chosen": [first, second],
        "compared": advice.compare_at(state, first, second)._repr_html_(),
        "snapshots": [[name, *plan_line(entry)] for name, entry in advice.snapshot_entries.items()],
        "history": [[entry.summary, *plan_line(entry)] for entry in history[start : start + _SHOWN]],
        "position": position - start,
    }


def plan_line(entry: Entry) -> list[str]:
    """Fit, memory, speed, time and money of a plan."""
    estimate, required = entry.state.estimate, entry.recommended.min_fit_probability
    state = fit(estimate, required)
    # A plan that cannot run has no speed and no price.
    figures = (
        ["–"] * 3
        if state == "over"
        else [f"{of.value} {of.unit}" for of in headlines(entry.state.advice.model, estimate)]
    )
    return [FITS[state], memory(estimate), *figures]


def why(advice: Advice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """The ladder of the plan on screen with its reasons, and its difference from the recommended one."""
    shown, own = advice.at(state), ""
    if shown is not advice.recommended:
        own = f"<h3>Your plan against the recommended one</h3>{advice.compare_at(state)._repr_html_()}"
    ladder = ladder_html(ladder_of(shown, None), reasons_of(shown.steps))
    folded = html_sections(shown, "Why", "Techniques", "Nearest AWS reference", opened=("Why",))
    chosen = html_sections(advice.recommended, "Model and cluster", opened=())
    return {"html": f"{own}{ladder}{folded}{chosen}{html_sources(shown.steps)}"}


def facts(advice: Advice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """Every figure, fact and assumption of the plan on screen, and the terms of the page."""
    shown = advice.at(state)
    uncited = uncited_hardware(shown.cluster.instance)
    folded = html_sections(
        shown, "Figures", "Configuration", "Calibration", "Effective time", "Assumptions", opened=("Figures",)
    )
    terms = "".join(
        f"<li><b>{escape(term.term)}</b>: {escape(term.text)}"
        f' <a href="{escape(term.source_url)}" target="_blank" rel="noopener">{escape(term.source_title)}</a></li>'
        for term in terms_of(shown.plan.library)
    )
    head = "".join(f"<p>{escape(text)}</p>" for text in (shown.model.summary, shown.cluster.summary, uncited) if text)
    return {"html": f"{head}{folded}<details><summary>Glossary</summary><ul>{terms}</ul></details>"}


_MOST_OFFERS, _MOST_RUNS = 20, 8
_offers: dict[str, Callable[[], Run]] = {}
"""Starts that pages offer, by tokens that are used once."""
_runs: dict[str, Run] = {}
"""The runs that were started, by their tokens."""


def start(advice: Advice, state: ControlState, options: Mapping[str, object]) -> Mapping[str, object]:
    """The request of the plan with its prices and a token that starts it once, or the run that was started."""
    value, token, text = advice.as_recommended(state), str(options.get("confirm", "")), str(options.get("options", ""))
    if token in _offers:
        _runs[token] = _offers.pop(token)()
    if token in _runs:
        run = _runs[token]
        if options.get("stop") is True and not run.done:
            run.stop()
        run.poll()
        place = run.source.folder if isinstance(run.source, LocalFolder) else run.name
        return {"run": run._repr_html_(), "watch": f"%smp_watch {str(place)!r}", "stop": run.can_stop and not run.done}
    data: dict[str, object] = {"lines": [], "request": "", "job": "", "run": "", "watch": "", "probe": False}
    folders = sorted(Path("smp_runs").glob("*/"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    data["runs"] = [[folder.name, f"%smp_watch {str(folder)!r}"] for folder in folders[:_MOST_RUNS]]
    data["local"] = _offered(lambda: value.start(local=True))
    if text:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise AdvisorError(f"The options cannot be read: {error}.") from None
        job = named_values(words)
        terms = value.terms(**job)
        lines = [f"This job would run on {terms.run}", terms.probe]
        with suppress(AdvisorError):  # without tokens, a run has no cost to save
            worth = value.worth_measuring()
            lines.append(worth.decision)
            data["probe"] = worth.measure
        data |= {"lines": [line for line in lines if line], "request": terms.cell}
        data["job"] = _offered(lambda: value.start(confirm=True, **job))
    return data


def _offered(start: Callable[[], Run]) -> str:
    """The token of an offer; the oldest offers are forgotten."""
    token = secrets.token_hex(8)
    _offers[token] = start
    while len(_offers) > _MOST_OFFERS:
        del _offers[next(iter(_offers))]
    return token


SLOW_PANELS = frozenset({"points", "alternatives", "clusters", "start"})
"""Panels that take seconds: they are computed while the kernel answers other requests."""


PANELS: dict[str, Panel] = {
    "alternatives": lambda _, state, options: chart_of(state.advice, "alternatives", state.plan).plain(
        options.get("width")
    ),
    "fields": lambda *_: suggestions(),
    "points": lambda advice, *_: {"points": points_of(advice.recommended)},
    "ranks": lambda _, state, __: {"html": rank_map(state.plan, state.advice.cluster)._repr_html_()},
    "modules": modules,
    "fit": lambda advice, state, _: {
        "ways": [{name: way[name] for name in ("text", "note", "workload")} for way in ways_to_fit(advice, state)]
    },
    "costs": lambda _, state, __: {
        "html": "".join(chart_of(state.advice, name, state.plan).as_html() for name in ("time", "memory"))
    },
    "why": why,
    "facts": facts,
    "requirements": lambda advice, state, _: {"html": html_sections(advice.at(state), "Requirements", opened=())},
    "compare": compare,
    "clusters": clusters,
    "start": start,
}
"""Function that computes the data of a panel for the plan on the screen, by the name in the view's request. The last
parameter contains the options that the view set in the panel, and its width in pixels."""


def panel_data(name: str, advice: Advice, state: ControlState, options: object = None) -> Mapping[str, object]:
    """Data of one panel for a state of the controls."""
    if name not in PANELS:
        raise PlanError(f"The advisor has no panel {name!r}; it has {', '.join(PANELS)}.")
    return PANELS[name](advice, state, options if isinstance(options, dict) else {})


class PanelRequests:
    """Requests for panels of one advisor."""

    def __init__(self, advice: Advice, send: Callable[[dict[str, Any]], object]) -> None:
        self._advice, self._send = advice, send
        # One slow panel at a time: a later request for the same data then takes it from the first.
        self._slow = Lock()

    def serve(self, content: Mapping[str, Any]) -> None:
        """Send the data for the settings of the request, whatever the controls are by then."""
        identity, name, options = str(content.get("id", "")), str(content.get("name", "")), content.get("options")
        with self._advice.turn:
            controls = self._advice.controls
        library = controls.advice.plan.library
        try:
            settings = require_settings(content.get("settings"), library)
            state = control_state.require(control_state.apply(controls, settings))
        except AdvisorError as error:
            self._fail(identity, library, error)
            return
        if name in SLOW_PANELS:
            self._send({"kind": "started", "id": identity})

            def compute() -> None:
                with self._slow:
                    self._compute(identity, name, state, options)

            Thread(target=compute, daemon=True).start()
        else:
            self._compute(identity, name, state, options)

    def _compute(self, identity: str, name: str, state: ControlState, options: object) -> None:
        try:
            data = dict(panel_data(name, self._advice, state, options))
        except AdvisorError as error:
            self._fail(identity, state.advice.plan.library, error)
        except Exception as error:  # noqa: BLE001 (the page must not wait for ever)
            text = f"This part of the page cannot be computed: {type(error).__name__}: {error}."
            self._fail(identity, state.advice.plan.library, AdvisorError(text))
        else:
            self._send({"kind": "panel", "id": identity, "name": name, "settings": state.settings, "data": data})

    def _fail(self, identity: str, library: str, error: AdvisorError) -> None:
        self._send({"kind": "failed", "id": identity, "text": with_labels(library, str(error))})


def session_steps(advice: Advice) -> dict[str, Any]:
    """The next steps of undo and redo, empty if there is none, and a number that changes with history and snapshots."""
    history, position = advice.history, len(advice.history) - 1 - advice.undone
    problem = "the last setting, which cannot be combined with the others" if advice.controls.problem else ""
    return {
        "undo": problem or (history[position].summary if position else ""),
        "redo": history[position + 1].summary if advice.undone else "",
        "version": advice.version,
    }


def perform(advice: Advice, content: Mapping[str, Any]) -> None:
    """Perform an action: ``{"action": "undo"}``, ``{"action": "keep", "value": "name"}``."""
    action, value = str(content.get("action")), content.get("value")
    by_name: dict[str, Callable[[str], object]] = {
        "keep": advice.keep,
        "load": advice.load,
        "forget": advice.forget,
        "pin": lambda name: advice.unpin(name) if name in advice.pins else advice.pin(name),
    }
    by_number: dict[str, Callable[[int], object]] = {"undo": advice.undo, "redo": advice.redo, "adopt": advice.adopt}
    if action == "reset":
        advice.reset()
    elif action in by_name and isinstance(value, str):
        by_name[action](value)
    elif action in by_number and (value is None or type(value) is int):
        if value is None and action == "adopt":
            raise AdvisorError("Adopting an alternative requires its row.")
        by_number[action](1 if value is None else value)
    else:
        raise AdvisorError(f"The advisor has no action {action!r} with the value {value!r}.")
