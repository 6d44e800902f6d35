"""Pieces of a result as HTML: JupyterLab's own colours, everything from the user escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["box", "details", "table"]

_OK = "var(--jp-success-color1, #1b7f3b)"
_FAILED = "var(--jp-error-color1, #b3261e)"


def box(title: str, *parts: str, ok: bool | None = None) -> str:
    """A result: its sentence, and HTML below it; `ok` colours the edge and says so in words to a screen reader."""
    colour = "var(--jp-border-color1, #999)" if ok is None else _OK if ok else _FAILED
    said = "" if ok is None else f'<span style="color:{colour}">{"Done." if ok else "Failed."}</span> '
    return (
        f'<div class="smp-advisor-result" style="border-left:3px solid {colour};padding-left:10px;margin:4px 0">'
        f"<p>{said}<strong>{escape(title)}</strong></p>{''.join(parts)}</div>"
    )


def details(title: str, content: str, *, shown: bool = False) -> str:
    """HTML behind a heading that opens it."""
    opened = " open" if shown else ""
    return f'<details{opened}><summary style="cursor:pointer">{escape(title)}</summary>{content}</details>'


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Rows of text; the first cell of each is its heading."""
    head = "".join(f'<th scope="col" style="text-align:left">{escape(one)}</th>' for one in heads)
    lines = []
    for first, *rest in rows:
        cells = "".join(f'<td style="text-align:left;overflow-wrap:anywhere">{escape(str(one))}</td>' for one in rest)
        lines.append(f'<tr><th scope="row" style="text-align:left">{escape(str(first))}</th>{cells}</tr>')
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{''.join(lines)}</tbody></table>"
