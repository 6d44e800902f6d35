"""Putting the library's own around the statement that makes the model, and behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.scripts.adapt.code import statements
from smp_advisor.scripts.adapt.edits import Edits

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.construction import Construction
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["wrap_construction"]


def wrap_construction(draft: Draft, found: Construction, *, context: str, wrap: str) -> None:
    """Put `context` (a ``with`` line, or nothing) around the construction, `wrap` after the last statement about it."""
    edits = Edits()
    after = statements(wrap)
    if context:
        alone = found.last is found.statement

        def indent(new: Any) -> Any:
            block = cst.ensure_type(statements(f"{context}:\n    pass\n")[0], cst.With)
            block = block.with_changes(
                leading_lines=new.leading_lines,
                body=block.body.with_changes(body=[new.with_changes(leading_lines=[])]),
            )
            return cst.FlattenSentinel([block, *(after if alone else [])])

        edits.change(found.statement, indent)
    if not context or found.last is not found.statement:
        edits.insert_after(found.last, after)
    draft.apply(edits)
