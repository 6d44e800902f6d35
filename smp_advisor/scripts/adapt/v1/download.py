"""Step: download in one process per instance while the other processes wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, keyword, statements, text_of
from smp_advisor.scripts.adapt.edits import Edits

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["download_on", "download_once"]


def download_once(draft: Draft) -> None:
    """Restrict ``download=True`` to local rank 0."""
    download_on(draft, local_rank="smp.local_rank()", barrier="smp.barrier()")


def download_on(draft: Draft, *, local_rank: str, barrier: str) -> bool:
    """Restrict ``download=True`` to the first process of an instance; whether there was such a call."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        option = keyword(call, "download")
        if option is None or dotted(option.value) != "True":
            continue
        if any(isinstance(above, cst.If) and "local_rank" in text_of(above.test) for above in survey.ancestors(call)):
            continue
        statement = survey.statement(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            draft.add_todo(
                f"`{draft.excerpt(call)}` downloads in every process: download only if {local_rank} == 0, and then"
                f" call {barrier}."
            )
            continue
        edits.insert_before(statement, statements(f"if {local_rank} == 0:\n    {text_of(call)}\n{barrier}\n"))
        edits.replace(option.value, cst.Name("False"))
    changed = bool(edits)
    draft.apply(edits)
    return changed
