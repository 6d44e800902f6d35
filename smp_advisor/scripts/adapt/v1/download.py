"""Step: one process of an instance downloads, the others wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, keyword, spelled, statements
from smp_advisor.scripts.adapt.edits import Edits

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["download_once"]


def download_once(draft: Draft) -> None:
    """Guard ``download=True`` by the local rank."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        given = keyword(call, "download")
        if given is None or dotted(given.value) != "True":
            continue
        if any(isinstance(above, cst.If) and "local_rank" in spelled(above.test) for above in survey.ancestors(call)):
            continue
        statement = survey.statement(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            draft.leave_to_do(
                f"`{draft.at(call)}` downloads on every process: let smp.local_rank() == 0 do it, and call"
                " smp.barrier()."
            )
            continue
        edits.insert_before(statement, statements(f"if smp.local_rank() == 0:\n    {spelled(call)}\nsmp.barrier()\n"))
        edits.replace(given.value, cst.Name("False"))
    draft.apply(edits)
