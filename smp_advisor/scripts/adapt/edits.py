"""Changes to a module, collected first and then made in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

__all__ = ["Edits"]

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Change = Callable[[Any], Any]
"""From a node to the node, or the sequence of nodes, in its place."""
Result = Any
"""What LibCST takes from a transformer: a node, several, or their removal."""


class Edits:
    """What to replace, remove and insert; nodes are those of the module that `apply` is given."""

    def __init__(self) -> None:
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._removed: set[cst.CSTNode] = set()
        self._before: dict[cst.CSTNode, list[Statement]] = {}
        self._after: dict[cst.CSTNode, list[Statement]] = {}

    def __bool__(self) -> bool:
        return bool(self._changes or self._removed or self._before or self._after)

    def change(self, node: cst.CSTNode, how: Change) -> None:
        """Let `how` make the new node from the old one, in which changes further down are already made."""
        self._changes.setdefault(node, []).append(how)

    def replace(self, node: cst.CSTNode, new: cst.CSTNode) -> None:
        """Put `new` in the node's place."""
        self.change(node, lambda _: new)

    def remove(self, statement: cst.CSTNode) -> None:
        """Take a statement out; a block left empty gets ``pass``."""
        self._removed.add(statement)

    def is_removed(self, statement: cst.CSTNode) -> bool:
        """Whether the statement goes."""
        return statement in self._removed

    def insert_before(self, statement: cst.CSTNode, new: Sequence[Statement]) -> None:
        """Put statements above one, whose comments stay its own."""
        self._before.setdefault(statement, []).extend(new)

    def insert_after(self, statement: cst.CSTNode, new: Sequence[Statement]) -> None:
        """Put statements below one, after those that were put there before."""
        self._after.setdefault(statement, []).extend(new)

    def apply(self, module: cst.Module) -> cst.Module:
        """The module with every change made."""
        return module.visit(_Transformer(self)) if self else module

    def leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> Result:
        """What stands in the place of a node whose children have been changed to `updated`."""
        for how in self._changes.get(original, ()):
            updated = how(updated)
        removed = original in self._removed
        before, after = self._before.get(original, []), self._after.get(original, [])
        if not before and not after:
            return cst.RemoveFromParent() if removed else updated
        around: list[Any] = [*before, *([] if removed else [updated]), *after]
        # Blank lines above the statement stay above what now stands in its place; its comments stay its own.
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
            # A block that lost its statements.
            return result.with_changes(body=_pass())
        return result


def _pass() -> list[cst.SimpleStatementLine]:
    return [cst.SimpleStatementLine(body=[cst.Pass()])]
