"""The recommendation as HTML without scripts, for a saved notebook whose kernel is gone."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from smp_advisor.notebook.charts import legend, memory_chart, time_chart
from smp_advisor.notebook.headline import FITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.notebook.view_state import Fact, Recommendation, Snapshot

__all__ = ["bars_html", "figures_html", "header_html", "static_html"]

_FRAME = (
    "max-width:1040px;box-sizing:border-box;padding:14px 18px;border-radius:6px;"
    "border:1px solid var(--jp-border-color1,#bdbdbd);"
    "color:var(--jp-ui-font-color1,inherit);font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif)"
)
_HEADING = "margin:14px 0 4px;font-size:13px;font-weight:600"
_MUTED = "color:var(--jp-ui-font-color2,inherit)"
_VALUE = "font-size:16px;font-weight:600"
_TABLE = '<table style="border:0;border-collapse:collapse;margin:0">'
_TABLE_ROW = '<tr style="background:none">'
_CELL = "padding:2px 14px 2px 0;text-align:left;vertical-align:top"


def static_html(shown: Recommendation, now: Snapshot, ladder: str = "") -> str:
    """HTML of a recommendation. `now` is the plan of the controls, `ladder` the table of its ladder (HTML)."""
    parts = [
        header_html(shown),
        _heading("Recommended configuration" if _is_recommended(shown, now) else "Your configuration"),
        _configuration(shown, now),
        figures_html(shown, now),
        bars_html(shown, now),
        _heading("Why this configuration"),
        f'<div style="{_MUTED}">{escape(shown["because"])}</div>',
        ladder,
        _steps(shown),
        _reference(shown),
        _list("Requirements for the script and the data", [pitfall["text"] for pitfall in shown["pitfalls"]]),
        _list("Assumptions of the estimate", shown["assumptions"]),
        _glossary(shown),
    ]
    return f'<div class="smp-static" style="{_FRAME}">{"".join(parts)}</div>'


def header_html(shown: Recommendation) -> str:
    """Title, model, cluster and training job."""
    rows = "".join(_row(fact["label"], _fact(fact)) for fact in shown["facts"])
    if shown["defaults"]:
        rows += _row("Defaults", escape("; ".join(shown["defaults"])))
    title = f'<div style="font-size:17px;font-weight:600;margin-bottom:4px">{escape(shown["title"])}</div>'
    return f"{title}{_TABLE}{rows}</table>"


def figures_html(shown: Recommendation, now: Snapshot) -> str:
    """The verdict and the key figures."""
    costs = now["costs"]
    figures = "".join(
        f'<div style="min-width:130px"><div style="{_MUTED}"{_tooltip(shown, label)}>{escape(label)}</div>'
        f'<div style="{_VALUE}">'
        f'{escape(value)}</div><div style="{_MUTED}">{escape(note)}</div></div>'
        for label, (value, note) in zip(shown["figures"], costs["figures"], strict=True)
    )
    sign, words = FITS[costs["fit"]]
    return (
        f'<div style="{_HEADING}">{sign} {words}: {escape(costs["memory"])} ({escape(costs["likely"])})</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:10px 28px">{figures}</div>'
    )


def bars_html(shown: Recommendation, now: Snapshot) -> str:
    """Bars of memory and step time, with their keys."""
    costs = now["costs"]
    peak = next(stage for stage in costs["stages"] if stage["peak"])
    usable = f"{shown['usable_gib']:.1f} GiB usable of {shown['nominal_gib']:.0f} nominal"
    return "".join(
        [
            _heading(f"Memory per GPU ({usable})"),
            memory_chart(shown, costs),
            legend(shown["categories"], peak["gib"], "GiB"),
            _heading(f"Step time ({costs['step_range']})"),
            time_chart(shown, costs),
            legend(shown["seconds"], costs["seconds"], "s"),
        ]
    )


def _is_recommended(shown: Recommendation, now: Snapshot) -> bool:
    return now["configuration"] == shown["recommended"]["configuration"]


def _fact(fact: Fact) -> str:
    mark = f" <strong>({escape(fact['mark'])})</strong>" if fact["mark"] else ""
    note = f' <span style="{_MUTED}">({escape(fact["note"])})</span>' if fact["note"] else ""
    return f"{escape(fact['text'])}{mark}{note}"


def _tooltip(shown: Recommendation, label: str) -> str:
    text = shown["tooltips"].get(label)
    return f' title="{escape(text)}"' if text else ""


def _row(label: str, html: str, tooltip: str = "") -> str:
    head = f'<th scope="row" style="{_CELL};{_MUTED};font-weight:400"{tooltip}>{escape(label)}</th>'
    return f'{_TABLE_ROW}{head}<td style="{_CELL}">{html}</td></tr>'


def _configuration(shown: Recommendation, now: Snapshot) -> str:
    rows = "".join(
        _row(row, f"<strong>{escape(text)}</strong>", _tooltip(shown, row))
        for row, text in zip(shown["rows"], now["configuration"], strict=True)
        if text
    )
    return f"{_TABLE}{rows}</table>"


def _steps(shown: Recommendation) -> str:
    items = []
    for step in shown["steps"]:
        figures = "; ".join(f"{label} {value}" for label, value in step["figures"])
        text = f"{step['because']} {step['trade_off']}" + (f" ({figures})" if figures else "")
        title = f"<strong>{escape(step['title'])}: {escape(step['decision'])}.</strong>"
        source = _link(step["source_url"], step["source_title"])
        items.append(f'<li style="margin:4px 0">{title} {escape(text)} {source}</li>')
    return f'<ol style="margin:4px 0;padding-left:22px">{"".join(items)}</ol>'


def _link(url: str, title: str) -> str:
    if not url.startswith("https://"):
        return ""
    return f'<a href="{escape(url)}" target="_blank" rel="noopener">{escape(title or "source")}</a>'


def _reference(shown: Recommendation) -> str:
    reference = shown["reference"]
    if reference is None:
        return ""
    rows = "".join(_difference(difference) for difference in reference["differences"])
    text = f"{reference['name']}: {reference['summary']} {reference['extrapolation']}"
    return f"{_heading('Nearest AWS reference')}<div>{escape(text)}</div>{_TABLE}{rows}</table>"


def _difference(difference: dict[str, str]) -> str:
    change = f"{difference['reference']} → {difference['recommended']}"
    cells = (difference["setting"], change, difference["because"])
    return _TABLE_ROW + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells) + "</tr>"


def _glossary(shown: Recommendation) -> str:
    items = "".join(
        f'<li style="margin:2px 0"><strong>{escape(entry["term"])}</strong>: {escape(entry["text"])} '
        f"{_link(entry['url'], entry['title'])}</li>"
        for entry in shown["glossary"]
    )
    summary = f'<summary style="{_HEADING};cursor:pointer">Glossary</summary>'
    return f'<details>{summary}<ul style="margin:4px 0;padding-left:22px">{items}</ul></details>' if items else ""


def _heading(text: str) -> str:
    return f'<div style="{_HEADING}">{escape(text)}</div>'


def _list(title: str, sentences: Iterable[str]) -> str:
    items = "".join(f'<li style="margin:2px 0">{escape(sentence)}</li>' for sentence in sentences)
    return f'{_heading(title)}<ul style="margin:4px 0;padding-left:22px">{items}</ul>' if items else ""
