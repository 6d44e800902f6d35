"""A chart as a value: its data, its drawing, and its table."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.charts.bar_drawings import Bars, Gantt, LadderBars, Ranks, bars, gantt, ladder, ranks
from smp_advisor.charts.curve_drawings import Frontier, Scatter, Sweep, frontier, scatter, sweep
from smp_advisor.charts.marks import dot, line, rect
from smp_advisor.errors import AdvisorError
from smp_advisor.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["DRAWINGS", "Chart", "Data"]

Data = Bars | Frontier | Gantt | LadderBars | Ranks | Scatter | Sweep

DRAWINGS: Mapping[str, Callable[[Any, float], str]] = {
    "bars": bars,
    "frontier": frontier,
    "gantt": gantt,
    "ladder": ladder,
    "ranks": ranks,
    "scatter": scatter,
    "sweep": sweep,
}
"""Function that draws each kind of data."""

MARKS: Mapping[str, str] = {
    "throughput": line("smp-curve smp-rate", 0, 5, 16, 5),
    "memory": line("smp-curve smp-need", 0, 5, 16, 5),
    "on screen": dot("smp-dot smp-rate smp-now", 8, 5, 4),
    "this plan": dot("smp-here", 8, 5, 4),
    "this cluster": dot("smp-here", 8, 5, 4),
    "recommended": dot("smp-dot smp-rate smp-best", 8, 5, 4),
    "at risk": rect("smp-shade smp-risk", 2, 0, 12, 10),
    "out of memory": rect("smp-shade smp-over", 2, 0, 12, 10),
    "not possible": rect("smp-shade smp-refused", 2, 0, 12, 10),
    "usable memory": line("smp-limit-mark", 8, 0, 8, 10),
    "95 % interval": line("smp-whisker", 1, 5, 15, 5)
    + line("smp-whisker", 1, 1, 1, 9)
    + line("smp-whisker", 15, 1, 15, 9),
    "before": rect("smp-ghost", 1, 1, 14, 8),
    "fits": rect("smp-memory-bar smp-is-fit", 1, 1, 14, 8),
    "does not fit": rect("smp-memory-bar smp-is-over", 1, 1, 14, 8),
    "step time": rect("smp-step-bar", 1, 1, 14, 8),
    "idle": rect("smp-idle", 1, 1, 14, 8),
}
"""Marks of the legends by their meaning."""

_WIDTH = 760
_NARROWEST, _WIDEST = 280, 4000


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart: a drawing in notebooks, a table in terminals, and a file with `save`."""

    kind: str
    """A key of `DRAWINGS`."""
    title: str
    data: Data
    columns: tuple[str, ...]
    """Headings of the table with the same figures."""
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Sentences below the drawing: what it leaves out, and where its figures come from."""
    key: tuple[str, ...] = ()
    """Names of the colors, in their order; empty names have none in the drawing."""
    marks: tuple[str, ...] = ()
    """Names of `MARKS` that the drawing has."""
    choices: tuple[str, ...] = ()
    """Names between which views can choose: columns that color the ranks, instance types to add."""

    def svg(self, width: float = _WIDTH) -> str:
        """The drawing, `width` pixels wide.

        Raises
        ------
        AdvisorError
            The width is not between 280 and 4,000 pixels.
        """
        number: object = width
        if type(number) not in {int, float} or not _NARROWEST <= width <= _WIDEST:
            raise AdvisorError(f"A chart is {_NARROWEST} to {_WIDEST:,} pixels wide, not {width!r:.40}.")
        return DRAWINGS[self.kind](self.data, width)

    def save(self, path: str | Path, width: float = _WIDTH) -> Path:
        """Write the drawing as an SVG file, which browsers show in the colors of their theme."""
        target = Path(path).expanduser()
        if target.suffix.lower() != ".svg":
            raise AdvisorError(f"A chart is saved as an SVG file: write {target.with_suffix('.svg').name!r}.")
        try:
            write_text(target, _document(self.svg(width)))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = getattr(error, "strerror", None) or str(error)
            raise AdvisorError(f"The chart cannot be written to {str(target)!r:.200}: {reason}.") from None
        return target

    def plain(self, width: object = None) -> dict[str, Any]:
        """The drawing, as wide as its place, and the table as plain data, for the views."""
        wide = width if isinstance(width, int) else _WIDTH
        return {
            "title": self.title,
            "svg": self.svg(min(max(wide, _NARROWEST), _WIDEST)),
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
            "legend": self._legend(),
            "choices": list(self.choices),
        }

    def _legend(self) -> list[tuple[str, str]]:
        """Swatch (SVG) and name of every color and mark."""
        color = "smp-g" if self.kind in {"scatter", "frontier"} else "smp-c"
        size = 'width="10" height="10"'
        colors = [
            (f'<svg {size} aria-hidden="true"><rect class="{color}{index}" {size}/></svg>', name)
            for index, name in enumerate(self.key)
            if name
        ]
        start = '<svg class="smp-chart" width="16" height="10" aria-hidden="true">'
        return colors + [(f"{start}{MARKS[name]}</svg>", name) for name in self.marks]

    def as_html(self, *, images: bool = False) -> str:
        """The chart with its key, notes and table as HTML.

        Parameters
        ----------
        images
            Whether the drawing is an image, which pages without trust in their content show, too: GitHub, and notebooks
            of others. They remove the drawing itself and its colors. Otherwise it has the colors of the page's theme.
        """
        cell = 'style="text-align:left;padding:2px 14px 2px 0"'
        head = "".join(f'<th scope="col" {cell}>{escape(text)}</th>' for text in self.columns)
        body = "".join(f"<tr>{''.join(f'<td {cell}>{escape(text)}</td>' for text in row)}</tr>" for row in self.rows)
        key = " ".join(
            f'<span style="white-space:nowrap;margin-right:12px">{mark} {escape(name)}</span>'
            for mark, name in ((_swatch(mark) if images else mark, name) for mark, name in self._legend())
        )
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        svg = self.svg()
        drawing = _image(_document(svg), _label(svg)) if images else f"<style>{_css()}</style>{svg}"
        return (
            f'<figure style="margin:0;max-width:{_WIDTH}px">'
            f'<figcaption style="font-weight:600;margin-bottom:6px">{escape(self.title)}</figcaption>'
            f"{drawing}<div>{key}</div>{notes}"
            f"<details><summary>Table</summary><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details>"
            "</figure>"
        )

    def _repr_html_(self) -> str:
        return self.as_html(images=True)

    def __str__(self) -> str:
        table = [self.columns, *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.columns))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        return "\n".join([self.title, *lines, *self.notes])

    __repr__ = __str__


def _swatch(mark: str) -> str:
    """A mark of the legend as an image, with the rules of its classes alone."""
    styles = {f".{style}" for styles in re.findall(r'class="([^"]*)"', mark) for style in styles.split()}
    head, _, rules = _css().partition("}\n")
    css = [rule for rule in rules.splitlines() if styles & set(re.findall(r"\.[\w-]+", rule.partition("{")[0]))]
    if ".smp-chart" in styles:
        own = styles - {".smp-chart"}
        css = [f"{head}}}", *(rule for rule in css if own & set(re.findall(r"\.[\w-]+", rule)))]
    return _image(_document(mark, "".join(css)), "")


def _document(svg: str, css: str | None = None) -> str:
    """A drawing as a complete SVG file, light or dark with a ground to match wherever it is shown."""
    root = '<svg xmlns="http://www.w3.org/2000/svg" style="color-scheme:light dark;background:Canvas"'
    style = f"<style>{_css() if css is None else css}</style>"
    return svg.replace("<svg", root, 1).replace(">", f">{style}", 1)


def _image(svg: str, label: str) -> str:
    """An SVG file as an image within the page; `label` is escaped already."""
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{label}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def _label(svg: str) -> str:
    """Escaped description of a drawing."""
    match = re.search(r'aria-label="([^"]*)"', svg)
    return match[1] if match else ""


@cache
def _css() -> str:
    return resources.files("smp_advisor.charts").joinpath("data/charts.css").read_text("utf-8")
