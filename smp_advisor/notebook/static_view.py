"""The picture of an advice in HTML, for saved notebooks and the fall-back view."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from smp_advisor.notebook.figures import FITS
from smp_advisor.notebook.panels import plan_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice.live import LiveAdvice
    from smp_advisor.notebook.view_state import Data

__all__ = ["facts_html", "session_html", "static_html", "title_html", "verdict_html"]


_SHOWN = 3
"""Entries of the history, the latest, and kept plans: the saved output stays small."""


def session_html(advice: LiveAdvice) -> str:
    """HTML of what was done with an advice; empty before anything was."""
    parts = []
    if not advice.is_recommended:
        summary = escape(advice.compare().summary)
        parts.append(f'<p style="margin:8px 0"><strong>Against the recommended plan:</strong> {summary}</p>')
    if advice.snapshots:
        entries = list(advice.snapshot_entries.items())[-_SHOWN:]
        parts.append(
            _folded_titles("Kept plans", [f"{name}: {', '.join(plan_line(entry))}" for name, entry in entries])
        )
    if len(advice.history) > 1:
        parts.append(_folded_titles("History", [entry.summary for entry in advice.history[-_SHOWN:]]))
    return "".join(parts)


def _folded_titles(title: str, texts: Sequence[str]) -> str:
    style = "margin:14px 0 4px;font-size:13px;font-weight:600;cursor:pointer"
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<details><summary style="{style}">{title}</summary><ul>{items}</ul></details>'


_FRAME = (
    "max-width:1040px;box-sizing:border-box;padding:14px 18px;border-radius:6px;"
    "border:1px solid var(--jp-border-color1,#bdbdbd);"
    "color:var(--jp-ui-font-color1,inherit);font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif)"
)
_HEADING = "margin:14px 0 4px;font-size:13px;font-weight:600"
_MUTED = "color:var(--jp-ui-font-color2,inherit)"
_LARGE = "font-size:22px;font-weight:700;line-height:1.2"
_VALUE = "font-size:16px;font-weight:600"
_FLOW = "display:flex;flex-wrap:wrap;gap:8px 32px"
_STATES = {"fits": "#0a7d4f", "risk": "#b25e00", "over": "#b3261e"}
"""Colors of the verdict's border. Its words have the color of text, which both themes have."""
_TABLE = '<table style="border:0;border-collapse:collapse;margin:0">'
_TABLE_ROW = '<tr style="background:none">'
_CELL = "padding:2px 14px 2px 0;text-align:left"


def static_html(shown: Data, now: Data, charts: str = "", ladder: str = "", session: str = "") -> str:
    """HTML of a plan in the order of the view: verdict, configuration, bars and reasons, then folded details.

    The glossary explains the labels. Tooltips would repeat its texts in the saved file.

    Parameters
    ----------
    now
        Plan of the controls.
    charts
        Bars of memory and step time (HTML).
    ladder
        Table of its ladder (HTML).
    session
        What was done with the advice (HTML).
    """
    requirements = [pitfall["text"] for pitfall in shown["pitfalls"]]
    parts = [
        title_html(shown),
        verdict_html(shown, now),
        _side_by_side(_configuration(shown, now), charts),
        session,
        _heading("Why this configuration"),
        ladder,
        _steps(shown),
        _folded_list("How the search chose", shown["because"]),
        _reference(shown),
        _folded_list("Requirements for the script and the data", requirements),
        facts_html(shown, now),
        _folded_list("Assumptions of the estimate", shown["assumptions"]),
    ]
    page = "".join(parts)
    return f'<div class="smp-static" style="{_FRAME}">{_without_formulas(page + _glossary(shown, page))}</div>'


def _without_formulas(html: str) -> str:
    """HTML whose dollar signs delimit no formula: pages of notebooks typeset text between two of them."""
    return re.sub(r">[^<]*", lambda text: text[0].replace("$", "<span>$</span>"), html)


def title_html(shown: Data) -> str:
    """Model and cluster."""
    return f'<div style="font-size:15px;font-weight:600;margin-bottom:8px">{escape(shown["title"])}</div>'


def verdict_html(shown: Data, now: Data) -> str:
    """Whether the plan fits, its speed, time and money, and what decides."""
    costs = now["costs"]
    sign, words = FITS[costs["fit"]]
    void = costs["fit"] == "over"  # a plan that cannot run has no speed and no price
    style = "text-decoration:line-through" if void else ""
    figures = "".join(
        f'<div><div style="{style}">{escape(about)} <span style="{_LARGE}">{escape(value)}</span> {escape(unit)}</div>'
        f'<div style="{_MUTED}">{"if it fitted" if void else escape(note or ends)}</div></div>'
        for about, value, unit, note, ends in costs["headline"]
    )
    lead, reason = shown["decisive"] if _is_recommended(shown, now) else ("Your plan.", "Its settings are below.")
    return (
        f'<div style="border-left:4px solid {_STATES[costs["fit"]]};padding:4px 14px">'
        f'<div style="{_FLOW}"><div><div style="{_LARGE}">{sign} {words}</div>'
        f"<div><strong>{escape(costs['memory'])}</strong></div>"
        f'<div style="{_MUTED}">{escape(costs["likely"])}</div></div>{figures}</div>'
        f'<div style="margin-top:6px"><strong>{escape(lead)}</strong> {escape(reason)}</div></div>'
    )


def facts_html(shown: Data, now: Data) -> str:
    """Every figure of the plan, and the facts and defaults behind them, folded."""
    figures = "".join(
        f'<div style="min-width:130px"><div style="{_MUTED}">{escape(label)}</div>'
        f'<div style="{_VALUE}">{escape(value)}</div><div style="{_MUTED}">{escape(note)}</div></div>'
        for label, (value, note) in zip(shown["figures"], now["costs"]["figures"], strict=True)
    )
    rows = "".join(_row(fact["label"], _fact(fact)) for fact in shown["facts"])
    if shown["defaults"]:
        rows += _row("Defaults", escape("; ".join(shown["defaults"])))
    return _folded("Figures and facts", f'<div style="{_FLOW}">{figures}</div>{_TABLE}{rows}</table>')


def _is_recommended(shown: Data, now: Data) -> bool:
    return bool(now["configuration"] == shown["recommended"]["configuration"])


def _fact(fact: Data) -> str:
    mark = f" <strong>({escape(fact['mark'])})</strong>" if fact["mark"] else ""
    note = f' <span style="{_MUTED}">({escape(fact["note"])})</span>' if fact["note"] else ""
    return f"{escape(fact['text'])}{mark}{note}"


def _row(label: str, html: str) -> str:
    head = f'<th scope="row" style="{_CELL};{_MUTED};font-weight:400">{escape(label)}</th>'
    return f'{_TABLE_ROW}{head}<td style="{_CELL}">{html}</td></tr>'


def _side_by_side(left: str, right: str) -> str:
    return (
        f'<div style="{_FLOW}"><div style="flex:1 1 300px">{left}</div><div style="flex:2 1 420px">{right}</div></div>'
    )


def _configuration(shown: Data, now: Data) -> str:
    recommended = shown["recommended"]["configuration"]
    rows = "".join(
        _row(row, f"<strong>{escape(text)}</strong>{_other(text, advised)}")
        for row, text, advised in zip(shown["rows"], now["configuration"], recommended, strict=True)
        if text
    )
    title = "Recommended configuration" if _is_recommended(shown, now) else "Your configuration"
    return f"{_heading(title)}{_TABLE}{rows}</table>"


def _other(text: str, advised: str) -> str:
    """The recommended value, if it is another."""
    return f' <span style="{_MUTED}">(recommended: {escape(advised or "none")})</span>' if text != advised else ""


def _steps(shown: Data) -> str:
    items = []
    for step in shown["steps"]:
        figures = "; ".join(f"{label} {value}" for label, value in step["figures"])
        text = f"{step['because']} {step['trade_off']}" + (f" ({figures})" if figures else "")
        title = f"<strong>{escape(step['title'])}: {escape(step['decision'])}.</strong>"
        source = _link(step["source_url"], step["source_title"])
        items.append(f"<li>{title} {escape(text)} {source}</li>")
    return f'<ol style="margin:4px 0;padding-left:22px">{"".join(items)}</ol>'


def _link(url: str, title: str) -> str:
    if not url.startswith("https://"):
        return ""
    return f'<a href="{escape(url)}">{escape(title or "source")}</a>'


def _reference(shown: Data) -> str:
    reference = shown["reference"]
    if reference is None:
        return ""
    rows = "".join(_difference(difference) for difference in reference["differences"])
    text = f"{reference['name']}: {reference['summary']} {reference['extrapolation']}"
    return _folded("Nearest AWS reference", f"<div>{escape(text)}</div>{_TABLE}{rows}</table>")


def _difference(difference: dict[str, str]) -> str:
    change = f"{difference['reference']} → {difference['recommended']}"
    cells = (difference["setting"], change, difference["because"])
    return _TABLE_ROW + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells) + "</tr>"


def _glossary(shown: Data, page: str) -> str:
    """Terms that the page contains, or has as labels."""
    words, labels = page.lower(), set(shown["tooltips"].values())
    items = "".join(
        f"<li><strong>{escape(entry['term'])}</strong>: {escape(entry['text'])} {_link(entry['url'], 'source')}</li>"
        for entry in shown["glossary"]
        if entry["text"] in labels or escape(entry["term"].lower()) in words
    )
    return _folded("Glossary", f'<ul style="margin:4px 0;padding-left:22px">{items}</ul>') if items else ""


def _heading(text: str) -> str:
    return f'<div style="{_HEADING}">{escape(text)}</div>'


def _folded(title: str, html: str) -> str:
    return f'<details><summary style="{_HEADING};cursor:pointer">{escape(title)}</summary>{html}</details>'


def _folded_list(title: str, sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    content = f'<ul style="margin:4px 0;padding-left:22px">{items}</ul>'
    return _folded(f"{title} ({len(sentences)})", content) if items else ""
