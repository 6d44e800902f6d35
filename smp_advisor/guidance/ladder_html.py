"""A ladder as an HTML table, without scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from smp_advisor.guidance.ladder_text import COLUMNS, cells

if TYPE_CHECKING:
    from smp_advisor.guidance.ladder import Ladder

__all__ = ["ladder_html"]

_CELL = "padding:2px 14px 2px 0;text-align:left"
_NUMBER = "padding:2px 14px 2px 0;text-align:right;white-space:nowrap"


def ladder_html(ladder: Ladder) -> str:
    """An accessible table: a caption, headings of columns and rows, and the unused techniques in their own group."""
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(text[:1].upper() + text[1:])}</th>' for text in COLUMNS)
    own = "".join(_row(cells(rung, first=not position), rung.because) for position, rung in enumerate(ladder.rungs))
    other = "".join(_row(cells(rung, first=True), rung.because) for rung in ladder.unused)
    group = (
        f'<tbody><tr><th scope="rowgroup" colspan="{len(COLUMNS)}" style="{_CELL}">With one change</th></tr>{other}'
        "</tbody>"
        if other
        else ""
    )
    return (
        '<table style="border:0;border-collapse:collapse;margin:0"><caption style="text-align:left">Techniques in the'
        " order of AWS&#x27;s best practices, each added to those above it"
        f" ({ladder.usable_gib:.1f} GiB usable per GPU)</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{own}</tbody>{group}</table>"
    )


def _row(texts: tuple[str, ...], because: str) -> str:
    title, *values = texts
    tooltip = f' title="{escape(because)}"' if because else ""
    columns = "".join(
        f'<td style="{_NUMBER if position in {0, 2} else _CELL}">{escape(text)}</td>'
        for position, text in enumerate(values)
    )
    return f'<tr><th scope="row" style="{_CELL};font-weight:400"{tooltip}>{escape(title)}</th>{columns}</tr>'
