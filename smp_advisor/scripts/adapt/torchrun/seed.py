"""Step: create the same weights in every process before they are sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.code import statements
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.known_names import known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["seed_models"]

_SEEDS = frozenset(known_names("model_seeds"))


def seed_models(draft: Draft) -> None:
    """Seed PyTorch after the process group if the script has no seed."""
    survey, edits = draft.survey, Edits()
    if any(survey.callee(call) in _SEEDS for call in survey.calls):
        return
    group = next((c for c in survey.calls if survey.callee(c) == "torch.distributed.init_process_group"), None)
    statement = survey.statement(group) if group is not None else None
    if statement is None or survey.imported.get("torch") != "torch":
        draft.add_todo("Seed PyTorch with the same number in every process before the model is created.")
        return
    edits.insert_after(statement, statements("torch.manual_seed(0)\n"))
    draft.apply(edits)
