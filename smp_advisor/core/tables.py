"""Figures and tables as values: what every surface shows, and the forms in which it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.core.words import escape

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pandas as pd


def number(value: float) -> str:
    """Return three significant digits, because the intervals of estimates are wide: ``1,230``, ``3.54``, ``0.0871``."""
    rounded = float(f"{value:.3g}")
    if rounded >= 1000:
        return f"{rounded:,.0f}"
    digits = f"{rounded:#.3g}".rstrip(".")
    return digits if "e" not in digits else f"{rounded:g}"


def between(ends: tuple[float, float], scale: float = 1.0) -> str:
    """Return the ends of an interval: ``3.02 to 4.87``."""
    return f"{number(scale * ends[0])} to {number(scale * ends[1])}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure with its unit and its 95 % interval.

    Examples
    --------
    >>> figure = Figure(label="Step time", value=3.54, interval=(3.02, 4.87), unit="s", term="step_seconds")
    >>> figure.text, figure.short
    ('3.54 s (3.02 to 4.87)', '3.54 s')
    """

    label: str
    value: float
    interval: tuple[float, float] | None = None
    """Ends of the 95 % prediction interval, in the figure's unit; None for an exact figure."""
    unit: str = ""
    note: str = ""
    """Reference of the figure in a few words: per million tokens, of peak."""
    term: str = ""
    """Its entry of the glossary: the name of the field of `Estimate`."""

    @property
    def short(self) -> str:
        """The value with its unit: three digits of an estimate, cents of an exact figure."""
        digits = f"{self.value:,.2f}" if self.interval is None else number(self.value)
        return f"{digits} {self.unit}".rstrip()

    @property
    def ends(self) -> str:
        """The ends of the interval; empty without one."""
        return "" if self.interval is None else between(self.interval)

    @property
    def text(self) -> str:
        """The value with its unit and its interval."""
        return f"{self.short} ({self.ends})" if self.interval is not None else self.short


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of texts below the titles of their columns.

    Examples
    --------
    >>> print(Table(columns=("plan", "GiB"), rows=(("1", "28.0"), ("2", "9.5")), right=(1,)))
    plan   GiB
    1     28.0
    2      9.5
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int] = ()
    """Columns of numbers, which are aligned to the right."""
    caption: str = ""
    notes: Sequence[str] = ()
    """Tooltip of each row in HTML."""

    def lines(self) -> list[str]:
        """Return the lines of the table as text, the titles first."""
        rows = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        alignments = [f"{'>' if column in self.right else '<'}{width}" for column, width in enumerate(widths)]
        return ["  ".join(map(format, row, alignments)).rstrip() for row in rows]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """Return an escaped HTML table. A row of one text is the title of the rows below it."""
        styles = [
            f"padding:2px 14px 2px 0;text-align:{'right' if column in self.right else 'left'}"
            for column in range(len(self.columns))
        ]
        titles = self.columns if any(self.columns[1:]) else self.columns[:1]  # a title of all columns
        span = "" if titles == self.columns else f' colspan="{len(styles)}"'
        head = (
            f'<th scope="col"{span} style="{style}">{escape(text)}</th>' if text else "<td></td>"
            for text, style in zip(titles, styles, strict=False)
        )
        lines = ["".join(head)]
        for position, (title, *texts) in enumerate(self.rows):
            tooltip = f' title="{escape(self.notes[position])}"' if self.notes and self.notes[position] else ""
            scope = "row" if texts else f'rowgroup" colspan="{len(styles)}'
            cells = "".join(
                f'<td style="{style}">{_breaks(text)}</td>' for text, style in zip(texts, styles[1:], strict=False)
            )
            first = f'<th scope="{scope}" style="{styles[0]};font-weight:400"{tooltip}>{escape(title)}</th>'
            lines.append(first + cells)
        caption = f'<caption style="text-align:left">{_breaks(self.caption)}</caption>' if self.caption else ""
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f'<table style="border:0;border-collapse:collapse;margin:0">{caption}{body}</table>'

    def frame(self) -> pd.DataFrame:
        """Return the table as a DataFrame of texts."""
        return frame_of([list(row) for row in self.rows], columns=list(self.columns))


def frame_of(data: Any, **options: Any) -> pd.DataFrame:
    """Return a DataFrame. Pandas is imported at its first use."""
    import pandas as pd

    return pd.DataFrame(data, **options)


def _breaks(text: str) -> str:
    return escape(text).replace("\n", "<br>")


class Shown:
    """A value that IPython shows as its text, a block for each line in a notebook."""

    def __init_subclass__(cls) -> None:
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]  # IPython prefers a class's own repr

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 (IPython's signature)
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return "".join(f"<div>{escape(line)}</div>" for line in str(self).splitlines())
