"""Tables in text and in HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["table_html", "table_lines"]

_CELL = 'style="text-align:left;padding:2px 14px 2px 0"'


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first row has the titles of its columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table_html(rows: Sequence[Sequence[str]]) -> str:
    """The same as HTML, with every cell escaped."""
    tags = ["th", *["td"] * (len(rows) - 1)]
    lines = (
        "".join(f"<{tag} {_CELL}>{escape(cell)}</{tag}>" for cell in row) for tag, row in zip(tags, rows, strict=True)
    )
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
