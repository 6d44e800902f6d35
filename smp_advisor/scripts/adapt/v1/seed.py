"""Step: seed the random number generators by data-parallel rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import expression, keyword, statements, text_of
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.known_names import known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["seed_by_rank"]

_MODEL_SEEDS = frozenset(known_names("model_seeds"))
_DATA_SEEDS = frozenset(known_names("data_seeds"))


def seed_by_rank(draft: Draft) -> None:
    """Add the rank to every seed, and give data splits their own generator."""
    survey, edits = draft.survey, Edits()
    seeded = False
    for call in survey.calls:
        name = survey.callee(call)
        if name not in _MODEL_SEEDS | _DATA_SEEDS or len(call.args) != 1 or call.args[0].star:
            continue
        seeded |= name in _MODEL_SEEDS
        argument = call.args[0]
        if "smp." in text_of(argument.value):
            continue
        rank = "smp.dp_rank()" if name in _MODEL_SEEDS else draft.target.data_rank
        text = text_of(argument.value)
        if not isinstance(argument.value, cst.Name | cst.Attribute | cst.Integer | cst.Call | cst.Subscript):
            text = f"({text})"
        edits.replace(argument.value, expression(f"{text} + {rank}"))
    if seeded:
        for call in survey.calls:
            if survey.callee(call).endswith("random_split") and keyword(call, "generator") is None:
                # The split must be the same on every rank.
                added = expression(
                    f"f({', '.join(text_of(arg).rstrip(', ') for arg in call.args)},"
                    " generator=torch.Generator().manual_seed(0))"
                )
                edits.replace(call, cst.ensure_type(added, cst.Call).with_changes(func=call.func))
    elif draft.target.tensor_parallel:
        start = next(
            (c for c in survey.calls if survey.callee(c) == "torch.cuda.set_device" and "smp." in text_of(c)), None
        )
        statement = survey.statement(start) if start is not None else None
        if statement is not None:
            edits.insert_after(statement, statements("torch.manual_seed(smp.dp_rank())\n"))
    draft.apply(edits)
