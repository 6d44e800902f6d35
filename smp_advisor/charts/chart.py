"""A chart as a value: its data, its drawing, and its table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote

from smp_advisor.core.tables import Table
from smp_advisor.core.words import escape

if TYPE_CHECKING:
    from collections.abc import Callable


_WIDTH = 760
_NARROWEST, _WIDEST = 280, 4000


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart: in notebooks a drawing, if it has one, and in terminals a table."""

    title: str
    columns: tuple[str, ...]
    """Headings of the table with the same figures."""
    rows: tuple[tuple[str, ...], ...]
    draw: Callable[[float], str] | None = None
    """Draws the SVG, as wide as requested; None for a table with a bar in the last cell of each row."""
    notes: tuple[str, ...] = ()
    """Sentences below the drawing: what it leaves out, and where its figures come from."""
    choices: tuple[str, ...] = ()
    """Instance types that views can add."""

    def fitted(self, width: object) -> str:
        """The drawing for a page that is so many pixels wide, which can be any value; empty without a drawing."""
        wide = width if isinstance(width, int) else _WIDTH
        return "" if self.draw is None else _styled(self.draw(min(max(wide, _NARROWEST), _WIDEST)))

    def as_html(self) -> str:
        """Return the chart with its notes as HTML; below a drawing, its figures are a folded table.

        The drawing is an image: pages without trust in their content (GitHub, notebooks of others) remove drawings.
        """
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        table = self.table().html()
        if self.draw is None:
            shown = re.sub("[█-▏]+", r'<span aria-hidden="true" style="color:#0072b2">\g<0></span>', table)
        else:
            shown = f"{image(self.draw(_WIDTH))}<details><summary>Table</summary>{table}</details>"
        return (
            f'<figure style="margin:0;max-width:{_WIDTH}px">'
            f'<figcaption style="font-weight:600;margin-bottom:6px">{escape(self.title)}</figcaption>'
            f"{shown}{notes}</figure>"
        )

    def _repr_html_(self) -> str:
        return self.as_html()

    def __str__(self) -> str:
        return "\n".join([self.title, *self.table().lines(), *self.notes])

    def table(self) -> Table:
        """Return the figures of the chart."""
        right = () if self.draw else range(1, len(self.columns) - 1)
        return Table(columns=self.columns, rows=self.rows, right=right)

    __repr__ = __str__


def image(svg: str) -> str:
    """Return a drawing as an image within a page: a complete SVG file, light or dark wherever it is shown.

    The pointer does not reach the figures of its marks.
    """
    description = re.search(r' aria-label="([^"]*)"', svg) or ("", "")
    bare = re.sub(r"><title>[^<]*</title></\w+>", "/>", svg.replace(description[0], ""))
    root = '<svg xmlns="http://www.w3.org/2000/svg" style="color-scheme:light dark;background:Canvas"'
    styled = _styled(bare).replace("<svg", root, 1)
    while styled != (resolved := re.sub(r"var\(--(?!smp-[xc]\b)[\w-]+, ((?:[^()]|\([^()]*\))*)\)", r"\1", styled)):
        styled = resolved  # no page sets its colors
    data = quote(styled.replace('"', "'"), safe=" !'()*+,/:;<=>?@[]{}")
    return f'<img alt="{description[1]}" style="max-width:100%" src="data:image/svg+xml,{data}">'


def _styled(svg: str) -> str:
    """Return a drawing with the rules of its classes, in the colors of the page around it."""
    styles = {f".{style}" for styles in re.findall(r'class="([^"]*)"', svg) for style in styles.split()}
    head, _, rules = re.sub(r"/\*.*\*/\n|(?<=[{;])\s+", "", _css()).partition("}\n")
    css = [f"{head}}}"] * (".smp-chart" in styles)
    for rule in rules.splitlines():
        classes = set(re.findall(r"\.[a-z][\w-]*", rule.partition("{")[0])) - {".smp-chart"}
        if classes & styles or not classes:
            css.append(rule)
    return svg.replace(">", f"><style>{''.join(css)}</style>", 1)


@cache
def _css() -> str:
    return resources.files("smp_advisor.charts").joinpath("data/charts.css").read_text("utf-8")
