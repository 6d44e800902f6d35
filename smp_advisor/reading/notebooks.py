"""Changes to the cells of a notebook, from changes to the joined text of its code cells."""

from __future__ import annotations

import bisect
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.source import Edit, Source, applied

if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = ["CellChange", "cell_changes", "cell_texts", "changed_notebook"]


@dataclass(frozen=True, slots=True)
class CellChange:
    """One cell before and after its changes."""

    number: int
    """From 1, counting all cells."""
    before: str
    after: str
    edits: tuple[Edit, ...]
    """At places in the text of the cell."""


def cell_changes(source: Source, edits: Iterable[Edit]) -> list[CellChange] | None:
    """The cells that `edits` change; None if a change touches an IPython line or several cells."""
    raw = cell_texts(source.raw)
    by_cell: dict[int, list[Edit]] = {}
    for edit in edits:
        moved = _moved(source, raw, edit)
        if moved is None:
            return None
        number, change = moved
        by_cell.setdefault(number, []).append(change)
    return [
        CellChange(number, raw[number], applied(raw[number], changes), tuple(changes))
        for number, changes in sorted(by_cell.items())
    ]


def changed_notebook(source: Source, changes: Iterable[CellChange]) -> str:
    """The JSON of the notebook with the new text of its cells, formatted as Jupyter does."""
    data = json.loads(source.raw)
    for change in changes:
        cell = data["cells"][change.number - 1]
        lines = change.after.splitlines(keepends=True)
        cell["source"] = lines if isinstance(cell["source"], list) else change.after
    indent = re.search(r"\n( +)\S", source.raw)
    text = json.dumps(data, indent=len(indent[1]) if indent else None, ensure_ascii=False)
    return text + "\n" if source.raw.endswith("\n") else text


def cell_texts(raw: str) -> dict[int, str]:
    """The text of every code cell, by its number."""
    cells: list[dict[str, Any]] = json.loads(raw)["cells"]
    return {number: "".join(cell["source"]) for number, cell in enumerate(cells, 1) if cell["cell_type"] == "code"}


def _moved(source: Source, raw: dict[int, str], edit: Edit) -> tuple[int, Edit] | None:
    """The number of the cell, and the edit in its text."""
    starts = source.starts()
    first, last = (bisect.bisect_right(starts, place) for place in (edit.start, edit.end))
    top, number = max(cell for cell in source.cells if cell[0] <= first)
    lines = raw[number].split("\n")
    if last - top >= len(lines):
        return None
    if any(source.line(line) != lines[line - top] for line in range(first, last + 1)):
        return None

    def place(offset: int, line: int) -> int:
        return sum(len(text) + 1 for text in lines[: line - top]) + offset - starts[line - 1]

    return number, Edit(place(edit.start, first), place(edit.end, last), edit.text)
