"""Panels of the page and the requests for them: charts, reasons, figures, starts of runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.ladder import ladder_html, reasons_of
from smp_advisor.advice.rank_map import rank_map
from smp_advisor.advice.report import ladder_of
from smp_advisor.charts import chart_of
from smp_advisor.charts.plans import MOST_TYPES, clusters_chart, points_of
from smp_advisor.core.words import escape
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.notebook.figures import in_words_of_the_page
from smp_advisor.notebook.view_state import terms_of, uncited_hardware
from smp_advisor.notebook.workload_fields import suggestions, ways_to_fit
from smp_advisor.session import control_state
from smp_advisor.session.settings import require_settings, with_labels
from smp_advisor.session.written import html_sections, html_sources

if TYPE_CHECKING:
    from smp_advisor.charts.chart import Chart
    from smp_advisor.session import Advice
    from smp_advisor.session.control_state import ControlState


Panel = Callable[["Advice", "ControlState", Mapping[str, object]], Mapping[str, object]]


def _button(text: str, label: str = "", *, row: int | None = None, style: str = "smp-small", **deed: object) -> str:
    """Return a button with what it does; `kernel_page.ts` reads it. `text` can be HTML."""
    name = f' aria-label="{escape(label)}"' if label else ""
    of = "" if row is None else f' data-row="{row}"'
    done = escape(json.dumps(deed))
    return f'<button type="button" class="smp-button {style}" data-smp-do="{done}"{of}{name}>{text}</button>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], actions: Sequence[str]) -> str:
    """Return a table whose last column is HTML; it scrolls, also by keyboard."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in columns)
    lines = []
    for (title, *cells), action in zip(rows, actions, strict=True):
        texts = "".join(f"<td>{escape(text)}</td>" for text in cells)
        lines.append(f'<tr><th scope="row">{escape(title)}</th>{texts}<td class="smp-row-actions">{action}</td></tr>')
    return (
        f'<div class="smp-scroll" tabindex="0" role="group" aria-label="{escape(columns[0])}">'
        f'<table class="smp-table smp-figures-table"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _figure(
    chart: Chart, options: Mapping[str, object], word: str, use: Callable[[int], str], above: str = ""
) -> dict[str, str]:
    """Return a chart as wide as its place, its table, folded below a drawing, and what a row or its mark does."""
    table = _table((*chart.columns, word), chart.rows, [use(row) for row in range(len(chart.rows))])
    if drawing := chart.fitted(options.get("width")):
        fold = '<details class="smp-chart-table"><summary class="smp-summary">Table</summary>'
        table = f'<div class="smp-plot">{drawing}</div>{fold}{table}</details>'
    notes = "".join(f'<p class="smp-note">{escape(note)}</p>' for note in chart.notes)
    title = f'<figcaption class="smp-caption">{escape(chart.title)}</figcaption>'
    return {"html": f'<figure class="smp-figure">{above}{title}{notes}{table}</figure>'}


def clusters(_: Advice, state: ControlState, options: Mapping[str, object]) -> Mapping[str, object]:
    """Days against dollars. `options` may have further ``instances``: names of types between commas."""
    names = [name for name in str(options.get("instances") or "").split(",") if name]
    chart = clusters_chart(state.advice, state.estimate, names)

    def use(row: int) -> str:
        nodes, _, name = chart.rows[row][0].partition(" x ")
        return _button("Adopt", f"Adopt: {nodes} x {name}", row=row, search={"cluster": name, "instance_count": nodes})

    more = "".join(f'<option value="{",".join((*names, name))}">{name}</option>' for name in chart.choices)
    add = (
        '<label class="smp-choice">Add an instance type <select class="smp-select" name="instances"><option value=""'
        f" selected>none</option>{more}</select></label>"
    ) * (len(names) < MOST_TYPES)
    return _figure(chart, options, "Adopt", use, add)


def alternatives(_: Advice, state: ControlState, options: Mapping[str, object]) -> Mapping[str, object]:
    """Return the combinations of techniques that fit; one is loaded with a click."""
    chart = chart_of(state.advice, "alternatives", state.plan)

    def use(row: int) -> str:
        return _button("Load", f"Load: {chart.rows[row][0]}", row=row, act="adopt", value=row)

    return _figure(chart, options, "Load", use)


def why(advice: Advice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """Return the ladder of the plan on screen with its reasons, and its difference from the recommended one."""
    shown, own = advice.at(state), ""
    if shown is not advice.recommended:
        own = f"<h3>Your plan against the recommended one</h3>{advice.compare_at(state)._repr_html_()}"
    ladder = ladder_html(ladder_of(shown, None), reasons_of(shown.steps))
    folded = html_sections(shown, "Why", "Techniques", "Nearest AWS reference", opened=("Why",))
    chosen = html_sections(advice.recommended, "Model and cluster", opened=())
    return {"html": f"{own}{ladder}{folded}{chosen}{html_sources(shown.steps)}"}


def facts(advice: Advice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """Return every figure, fact and assumption of the plan on screen, and the terms of the page."""
    shown = advice.at(state)
    uncited = uncited_hardware(shown.cluster.instance)
    folded = html_sections(
        shown, "Figures", "Configuration", "Calibration", "Effective time", "Assumptions", opened=("Figures",)
    )
    link = ' <a href="{}" target="_blank" rel="noopener">{}</a>'
    terms = ""
    for term in terms_of(shown.plan.library):
        title, url = term.get("source", ("", ""))  # terms of this product alone have none
        source = link.format(escape(url), escape(title)) if url else ""
        terms += f"<li><b>{escape(term['term'])}</b>: {escape(term['text'])}{source}</li>"
    head = "".join(f"<p>{escape(text)}</p>" for text in (shown.model.summary, shown.cluster.summary, uncited) if text)
    return {"html": f"{head}{folded}<details><summary>Glossary</summary><ul>{terms}</ul></details>"}


_MOST_RUNS = 8


def start(advice: Advice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """Return the request of the plan with its prices and the line that starts it, and the runs in this folder."""
    terms = advice.as_recommended(state).terms()
    prices = filter(None, (f"This job would run on {terms.run}", terms.probe))
    parts = [f"<p>{escape(price)}</p>" for price in prices]
    parts.append(
        '<details class="smp-section"><summary class="smp-summary">Request</summary>'
        f'<pre class="smp-pre" tabindex="0">{escape(terms.cell)}</pre></details>'
        "<p>To start it, run in a cell: <code>%smp_start</code>. Each option of your account and the job is one more"
        " word: <code>%smp_start --option role=arn:aws:iam::111122223333:role/Training</code>.</p>"
    )
    folders = sorted(Path("smp_runs").glob("*/"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    runs = "".join(
        f"<li>{escape(folder.name)}: <code>{escape(f'%smp_watch {str(folder)!r}')}</code></li>"
        for folder in folders[:_MOST_RUNS]
    )
    parts.append(f'<h3 class="smp-title">Runs in this folder</h3><ul>{runs}</ul>' if runs else "")
    return {"html": "".join(parts)}


def _offers_to_fit(advice: Advice, state: ControlState) -> str:
    """Return the changes of the request after which the plan fits with all its settings, one click each."""
    offers = [
        _button(
            f"<b>{escape(way['text'][:1].upper() + way['text'][1:])}</b>"
            f'<span class="smp-note">{escape(way["note"])}</span>',
            style="smp-repair",
            search=way["workload"],
            fit=position,
        )
        for position, way in enumerate(ways_to_fit(advice, state))
    ]
    lead = "Or change the training or the machines, with these settings:"
    return f'<p class="smp-note">{lead}</p><div class="smp-repairs">{"".join(offers)}</div>' if offers else ""


def refusal(advice: Advice, state: ControlState, _: Mapping[str, object]) -> Mapping[str, object]:
    """Return why no cell can be inserted for the plan; an empty text if one can."""
    from smp_advisor.export.script import writable
    from smp_advisor.session.cells import run_of

    try:
        if not advice.script:
            writable(*run_of(advice, state.plan))
    except AdvisorError as error:
        own = 'name a script of your own, advise(..., script="train.py")'
        return {"text": str(error).replace("pass script= with your own script", own)}
    return {"text": ""}


SLOW_PANELS = frozenset({"points", "alternatives", "clusters", "start"})
"""Panels that take seconds: they are computed while the kernel answers other requests."""


PANELS: dict[str, Panel] = {
    "alternatives": alternatives,
    "fields": lambda *_: suggestions(),
    "points": lambda advice, *_: {"points": points_of(advice.recommended)},
    "ranks": lambda _, state, __: {"html": rank_map(state.plan, state.advice.cluster)._repr_html_()},
    "fit": lambda advice, state, _: {"html": _offers_to_fit(advice, state)},
    "costs": lambda _, state, __: {
        "html": "".join(chart_of(state.advice, name, state.plan).as_html() for name in ("time", "memory"))
    },
    "why": why,
    "facts": facts,
    "requirements": lambda advice, state, _: {"html": html_sections(advice.at(state), "Requirements", opened=())},
    "clusters": clusters,
    "start": start,
    "refusal": refusal,
}
"""Function that computes the data of a panel for the plan on the screen, by the name in the view's request. The last
parameter contains the options that the view set in the panel, and its width in pixels."""


def panel_data(name: str, advice: Advice, state: ControlState, options: object = None) -> Mapping[str, object]:
    """Data of one panel for a state of the controls."""
    if name not in PANELS:
        raise PlanError(f"The advisor has no panel {name!r}; it has {', '.join(PANELS)}.")
    data = PANELS[name](advice, state, options if isinstance(options, dict) else {})
    html = data.get("html")
    return {"html": in_words_of_the_page(html, state.plan.library)} if isinstance(html, str) else data


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
            self._send({"kind": "panel", "id": identity, "name": name, "data": data})

    def _fail(self, identity: str, library: str, error: AdvisorError) -> None:
        self._send({"kind": "failed", "id": identity, "text": with_labels(library, str(error))})


def session_steps(advice: Advice) -> dict[str, Any]:
    """Return the next steps of undo and redo, empty if there is none."""
    history, position = advice.history, len(advice.history) - 1 - advice.undone
    problem = "the last setting, which cannot be combined with the others" if advice.controls.problem else ""
    return {
        "undo": problem or (history[position].summary if position else ""),
        "redo": history[position + 1].summary if advice.undone else "",
    }


def perform(advice: Advice, content: Mapping[str, Any]) -> None:
    """Perform an action: ``{"action": "undo"}``, ``{"action": "pin", "value": "batch_size"}``."""
    action, value = str(content.get("action")), content.get("value")
    by_number: dict[str, Callable[[int], object]] = {"undo": advice.undo, "redo": advice.redo, "adopt": advice.adopt}
    if action == "reset":
        advice.reset()
    elif action == "pin" and isinstance(value, str):
        (advice.unpin if value in advice.pins else advice.pin)(value)
    elif action in by_number and (value is None or type(value) is int):
        if value is None and action == "adopt":
            raise AdvisorError("Adopting an alternative requires its row.")
        by_number[action](1 if value is None else value)
    else:
        raise AdvisorError(f"The advisor has no action {action!r} with the value {value!r}.")
