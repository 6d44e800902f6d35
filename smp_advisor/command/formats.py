"""Code that can be exported from a saved advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.export.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.advice import Advice

__all__ = ["EXPORTS", "exported"]

_CELLS = ("job", "script", "local", "monitoring", "permissions", "quota")
EXPORTS = (*_CELLS, *FORMATS)
"""Kinds of code: cells of a notebook, then jobs for other launchers."""


def exported(advice: Advice, what: str, sdk: str) -> str:
    """The code of one kind."""
    cells: dict[str, Callable[[], str]] = {
        "job": lambda: advice.cell(sdk),
        "script": lambda: _file(advice.script_cell()),
        "local": advice.local_cell,
        "monitoring": advice.monitoring_cell,
        "permissions": lambda: advice.permissions_cell(sdk=sdk),
        "quota": advice.quota_cell,
    }
    return cells[what]() if what in cells else advice.export(what)


def _file(cell: str) -> str:
    """The file that a cell with ``%%writefile`` writes."""
    return cell.partition("\n")[2] if cell.startswith("%%writefile ") else cell
