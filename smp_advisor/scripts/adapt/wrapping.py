"""Wrap the model: a context around the statement that creates it, and a wrapper after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.scripts.adapt.code import statements
from smp_advisor.scripts.adapt.edits import Edits

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.construction import Construction
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["wrap_construction"]


def wrap_construction(draft: Draft, construction: Construction, *, context: str, wrap: str) -> None:
    """Put the construction into `context` (a ``with`` header, or empty), and insert `wrap` after its last statement."""
    edits = Edits()
    after = statements(wrap)
    if context:
        alone = construction.last is construction.statement

        def indent(new: Any) -> Any:
            block = cst.ensure_type(statements(f"{context}:\n    pass\n")[0], cst.With)
            block = block.with_changes(
                leading_lines=new.leading_lines,
                body=block.body.with_changes(body=[new.with_changes(leading_lines=[])]),
            )
            return cst.FlattenSentinel([block, *(after if alone else [])])

        edits.change(construction.statement, indent)
    if not context or construction.last is not construction.statement:
        edits.insert_after(construction.last, after)
    draft.apply(edits)
