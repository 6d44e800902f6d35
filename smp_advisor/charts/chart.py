"""A chart as a value: its data, its drawing, and its table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote

from smp_advisor.core.files import user_path, write_text
from smp_advisor.core.tables import Table
from smp_advisor.core.words import escape
from smp_advisor.errors import AdvisorError
from smp_advisor.marks import dot, label, line, number, rect, text_width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


MARKS: Mapping[str, str] = {
    "this cluster": dot("smp-here", 8, 5, 4),
    "95 % interval": "".join(line("smp-whisker", *ends) for ends in ((1, 5, 15, 5), (1, 1, 1, 9), (15, 1, 15, 9))),
}
"""Marks of the legends by their meaning."""

_WIDTH = 760
_NARROWEST, _WIDEST = 280, 4000


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart: in notebooks a drawing, if it has one, in terminals a table, and a file with `save`."""

    title: str
    columns: tuple[str, ...]
    """Headings of the table with the same figures."""
    rows: tuple[tuple[str, ...], ...]
    draw: Callable[[float], str] | None = None
    """Draws the SVG, as wide as requested; None for a table with a bar in the last cell of each row."""
    notes: tuple[str, ...] = ()
    """Sentences below the drawing: what it leaves out, and where its figures come from."""
    key: tuple[str, ...] = ()
    """Names of the colors, in their order; empty names have none in the drawing."""
    marks: tuple[str, ...] = ()
    """Names of `MARKS` that the drawing has."""
    choices: tuple[str, ...] = ()
    """Names between which views can choose: columns that color the ranks, instance types to add."""

    def svg(self, width: float = _WIDTH) -> str:
        """The drawing, `width` pixels wide, with the names of its colors and marks below.

        Raises
        ------
        AdvisorError
            The width is not between 280 and 4,000 pixels, or the chart is a table.
        """
        if self.draw is None:
            raise AdvisorError(f"The chart {self.title!r} is a table: print it, or save the advice as HTML.")
        requested: object = width
        if type(requested) not in {int, float} or not _NARROWEST <= width <= _WIDEST:
            raise AdvisorError(f"A chart is {_NARROWEST} to {_WIDEST:,} pixels wide, not {width!r:.40}.")
        svg = self.draw(width)
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg) or ("", "", "0")
        x, y, parts = 0.0, 8.0 + float(size[2]), []
        # Swatches, drawings of 16 by 10 pixels, of every color and mark.
        colors = ((f"smp-g{index}", name) for index, name in enumerate(self.key) if name)
        legend = [(rect(f"smp-part {color}", 0, 0, 10, 10), name) for color, name in colors]
        for swatch, name in legend + [(MARKS[name], name) for name in self.marks]:
            wide = 36 + text_width(name)
            if x + wide > width:
                x, y = 0.0, y + 18
            text = label("smp-text", 20, 9, name)
            parts.append(f'<g transform="translate({number(x)} {number(y)})">{swatch}{text}</g>')
            x += wide
        if not parts:
            return svg
        svg = svg.replace(size[0], f'viewBox="0 0 {size[1]} {number(y + 14)}"', 1)
        svg = svg.replace(f'height="{size[2]}"', f'height="{number(y + 14)}"', 1)
        return svg.removesuffix("</svg>") + "".join(parts) + "</svg>"

    def save(self, path: str | Path, width: float = _WIDTH) -> Path:
        """Write the drawing as an SVG file, which browsers show in the colors of their theme."""
        target = user_path(path, AdvisorError)
        if target.suffix.lower() != ".svg":
            raise AdvisorError(f"A chart is saved as an SVG file: write {target.with_suffix('.svg').name!r}.")
        drawing = self.svg(width)
        try:
            write_text(target, _document(drawing))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = getattr(error, "strerror", None) or str(error)
            raise AdvisorError(f"The chart cannot be written to {str(target)!r:.200}: {reason}.") from None
        return target

    def fitted(self, width: object) -> str:
        """The drawing for a page that is so many pixels wide, which can be any value; empty without a drawing."""
        wide = width if isinstance(width, int) else _WIDTH
        return "" if self.draw is None else _styled(self.svg(min(max(wide, _NARROWEST), _WIDEST)))

    def as_html(self) -> str:
        """The chart with its notes as HTML; below a drawing, its figures are a folded table.

        The drawing is an image: pages without trust in their content (GitHub, notebooks of others) remove drawings.
        """
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        if self.draw is None:
            table = self.table().html()
            shown = re.sub("[█-▏]+", r'<span aria-hidden="true" style="color:#0072b2">\g<0></span>', table)
        else:
            table = self.table().html()
            shown = f"{image(self.svg())}<details><summary>Table</summary>{table}</details>"
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
    """A drawing as an image within a page. The pointer does not reach the figures of its marks."""
    description = re.search(r' aria-label="([^"]*)"', svg) or ("", "")
    bare = re.sub(r"><title>[^<]*</title></\w+>", "/>", svg.replace(description[0], ""))
    data = quote(_document(bare).replace('"', "'"), safe=" !'()*+,/:;<=>?@[]{}")
    return f'<img alt="{description[1]}" style="max-width:100%" src="data:image/svg+xml,{data}">'


def _document(svg: str) -> str:
    """A drawing as a complete SVG file, light or dark with a ground to match wherever it is shown."""
    root = '<svg xmlns="http://www.w3.org/2000/svg" style="color-scheme:light dark;background:Canvas"'
    styled = _styled(svg).replace("<svg", root, 1)
    while styled != (resolved := re.sub(r"var\(--(?!smp-[xc]\b)[\w-]+, ((?:[^()]|\([^()]*\))*)\)", r"\1", styled)):
        styled = resolved  # no page sets its colors
    return styled


def _styled(svg: str) -> str:
    """A drawing with the rules of its classes, in the colors of the page around it."""
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
