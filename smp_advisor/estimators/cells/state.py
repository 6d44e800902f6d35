"""State of following one cell: names, what has been made, and how much more may be followed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smp_advisor.estimators.values import Made, Span, Table, Unknown, Value, clone, same

if TYPE_CHECKING:
    import ast

    from smp_advisor.reading.source import Source

__all__ = ["MAX_DEPTH", "MAX_ITEMS", "Scopes", "State", "TooLongError"]

MAX_DEPTH = 24
"""Calls within calls that are followed."""
MAX_ITEMS = 2_000
"""Items of one loop or list, and characters of a computed text, that are followed."""
_MAX_STEPS = 100_000

Scopes = tuple[dict[str, Value], ...]
"""Names of the running function and of what is around it, outermost first."""


class TooLongError(Exception):
    """More than anyone would write to configure a job."""


@dataclass(slots=True, eq=False)
class State:
    """Everything that following a cell keeps in mind."""

    source: Source
    made: list[Made] = field(default_factory=list)
    depth: int = 0
    doubts: list[str] = field(default_factory=list)
    """Conditions around the present line that reading cannot decide."""
    steps: int = 0
    stopped: tuple[int, str] | None = None
    """Line that surely ends the cell, and why."""
    text_starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.text_starts = self.source.starts()

    def left_out(self, span: Span) -> str:
        """Why something between these characters is not written out; empty where all is."""
        if self.source.cells:
            return ""
        return next(
            (why for line, why in self.source.skipped if span.start < self.text_starts[line - 1] < span.end), ""
        )

    def step(self) -> None:
        """Count one statement or expression."""
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise TooLongError

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        """Where a node stands in the text."""
        return Span(
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )

    def _offset(self, line: int, column_bytes: int) -> int:
        text = self.source.line(line)
        if not text.isascii():  # the parser counts bytes of UTF-8
            column_bytes = len(text.encode()[:column_bytes].decode(errors="ignore"))
        return self.text_starts[line - 1] + column_bytes

    def record(self, made: Made) -> None:
        """Note what a call made, as its arguments are now."""
        made.order = len(self.made) + 1
        made.sure = not self.doubts
        copy = clone(made, {})
        if isinstance(copy, Made):
            self.made.append(copy)


def snapshot(scopes: Scopes) -> list[dict[str, Value]]:
    """The names with copies of what they hold."""
    copies: dict[int, Value] = {}
    return [{name: clone(value, copies) for name, value in scope.items()} for scope in scopes]


def restore(scopes: Scopes, names: list[dict[str, Value]]) -> None:
    """Bind the names as they were."""
    for scope, before in zip(scopes, names, strict=True):
        scope.clear()
        scope.update(before)


def merge(scopes: Scopes, other: list[dict[str, Value]], why: str) -> None:
    """Keep what both branches agree on; the rest is not known."""
    for scope, second in zip(scopes, other, strict=True):
        for name in scope.keys() | second.keys():
            one, two = scope.get(name), second.get(name)
            scope[name] = Unknown(why) if one is None or two is None else merged(one, two, why)


def merged(one: Value, two: Value, why: str) -> Value:
    """What both values agree on."""
    if same(one, two):
        return one
    if isinstance(one, Table) and isinstance(two, Table):
        for key, entry in one.entries.items():
            there = two.entries.get(key)
            entry.value = Unknown(why) if there is None else merged(entry.value, there.value, why)
        for key, entry in two.entries.items():
            if key not in one.entries:
                entry.value = Unknown(why)
                one.entries[key] = entry
        one.open = one.open or two.open
        return one
    return Unknown(why)
