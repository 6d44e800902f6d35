"""A ladder as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.wording import gib, step_time

if TYPE_CHECKING:
    from smp_advisor.guidance.ladder import Ladder, Rung

__all__ = ["COLUMNS", "cells", "ladder_text", "unused_lines"]

COLUMNS = ("technique", "memory needed", "fits", "step time", "decision")
"""Headings of the table."""

_NONE = "-"


def cells(rung: Rung, *, first: bool = False) -> tuple[str, str, str, str, str]:
    """Texts of a rung, one per column. Every rung but the first adds its technique to those before it."""
    return (
        rung.title if first else f"+ {rung.title}",
        _NONE if rung.needed_gib is None else gib(rung.needed_gib),
        "yes" if rung.fits else "no",
        step_time(rung.estimate) if rung.estimate is not None and rung.fits else _NONE,
        f"{rung.decision} (another batch)" if "a global batch of" in rung.because else rung.decision,
    )


def ladder_text(ladder: Ladder, *, figures: bool = True) -> str:
    """The ladder as a table in text.

    Parameters
    ----------
    figures
        Whether techniques that are not used have their memory and step time, and not only the decision.
    """
    rows = [COLUMNS, *(cells(rung, first=not position) for position, rung in enumerate(ladder.rungs))]
    if figures and ladder.unused:
        rows += [("with one change:", "", "", "", ""), *(cells(rung, first=True) for rung in ladder.unused)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join("  " + _line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    title, needed, fits, time, decision = (
        text.rjust(width) if position in {1, 3} else text.ljust(width)
        for position, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return f"{title}  {needed}  {fits}  {time}  {decision}".rstrip()


def unused_lines(ladder: Ladder) -> list[str]:
    """One line for each technique that is not used: the technique and the reason."""
    return [
        f"{rung.short_title[:1].upper()}{rung.short_title[1:]}. {_short(rung.because)}"
        for rung in ladder.unused
        if rung.technique != "batch"  # the reason for the parts of the batch is with the used techniques
    ]


def _short(because: str) -> str:
    """A reason without the other settings that follow from the change, which have figures."""
    return f"{because.partition(' (')[0]}." if because.endswith(").") else because
