"""Edits of a LibCST module, collected first and then applied in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

__all__ = ["Edits"]

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Change = Callable[[Any], Any]
"""Maps a node to its replacement: a node or a sequence of nodes."""
Result = Any
"""Return value of a LibCST transformer: a node, several nodes, or a removal."""


class Edits:
    """Replacements, removals and insertions, keyed by nodes of the module passed to `apply`."""

    def __init__(self) -> None:
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._removed: set[cst.CSTNode] = set()
        self._before: dict[cst.CSTNode, list[Statement]] = {}
        self._after: dict[cst.CSTNode, list[Statement]] = {}

    def __bool__(self) -> bool:
        return bool(self._changes or self._removed or self._before or self._after)

    def change(self, node: cst.CSTNode, how: Change) -> None:
        """Replace a node by `how(node)`; the node passed to `how` already includes the edits of its children."""
        self._changes.setdefault(node, []).append(how)

    def replace(self, node: cst.CSTNode, new: cst.CSTNode) -> None:
        """Replace a node by `new`."""
        self.change(node, lambda _: new)

    def remove(self, statement: cst.CSTNode) -> None:
        """Remove a statement; an empty block gets ``pass``."""
        self._removed.add(statement)

    def is_changed(self, node: cst.CSTNode) -> bool:
        """Whether a change of the node is collected."""
        return node in self._changes

    def is_removed(self, statement: cst.CSTNode) -> bool:
        """Whether the statement is removed."""
        return statement in self._removed

    def insert_before(self, statement: cst.CSTNode, new: Sequence[Statement]) -> None:
        """Insert statements before another, between its blank lines and its comments."""
        self._before.setdefault(statement, []).extend(new)

    def insert_after(self, statement: cst.CSTNode, new: Sequence[Statement]) -> None:
        """Insert statements after another, and after those inserted there earlier."""
        self._after.setdefault(statement, []).extend(new)

    def inserted_names(self) -> set[str]:
        """Names that the inserted statements assign."""
        return {
            target.target.value
            for new in (*self._before.values(), *self._after.values())
            for statement in new
            if isinstance(statement, cst.SimpleStatementLine)
            for small in statement.body
            if isinstance(small, cst.Assign)
            for target in small.targets
            if isinstance(target.target, cst.Name)
        }

    def apply(self, module: cst.Module) -> cst.Module:
        """The module with all edits applied."""
        return module.visit(_Transformer(self)) if self else module

    def leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> Result:
        """Replacement of a node; `updated` is the node with its children edited."""
        for how in self._changes.get(original, ()):
            updated = how(updated)
        removed = original in self._removed
        before, after = self._before.get(original, []), self._after.get(original, [])
        if not before and not after:
            return cst.RemoveFromParent() if removed else updated
        around: list[Any] = [*before, *([] if removed else [updated]), *after]
        # Blank lines move above the inserted statements; comments stay with the original statement.
        if before and isinstance(updated, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            blank = _leading_blank(updated)
            if blank:
                first = around[0]
                around[0] = first.with_changes(leading_lines=[*blank, *first.leading_lines])
                if not removed:
                    position = len(before)
                    around[position] = updated.with_changes(leading_lines=updated.leading_lines[len(blank) :])
        return cst.FlattenSentinel(around)


def _leading_blank(statement: Statement) -> list[cst.EmptyLine]:
    blank = []
    for line in statement.leading_lines:
        if line.comment is not None:
            break
        blank.append(line)
    return blank


class _Transformer(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        result = self._edits.leave(original_node, updated_node)
        if isinstance(result, cst.IndentedBlock) and not result.body:
            return result.with_changes(body=_pass())
        return result


def _pass() -> list[cst.SimpleStatementLine]:
    return [cst.SimpleStatementLine(body=[cst.Pass()])]
