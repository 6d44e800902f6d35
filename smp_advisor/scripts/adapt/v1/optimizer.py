"""Step: wrap the optimizer, and pass the optimizer inside the wrapper to learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import call_text, dotted, expression, keyword, positional, statements, text_of
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.roles import optimizer_places, optimizers

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["wrap_optimizer"]

_SCALING = (
    "static_loss_scale=None",
    "dynamic_loss_scale=True",
    'dynamic_loss_args={"scale_window": 1000, "min_scale": 1, "delayed_shift": 2}',
)


def wrap_optimizer(draft: Draft) -> None:
    """Wrap every optimizer where it is created."""
    survey, edits = draft.survey, Edits()
    for optimizer in optimizers(survey):
        if any(
            "DistributedOptimizer" in text_of(above.func)
            for above in survey.ancestors(optimizer.call)
            if isinstance(above, cst.Call)
        ):
            continue
        scaling = _SCALING if draft.target.fp16 else ()
        statement = survey.statement(optimizer.call)
        if optimizer.name is not None and statement is not None:
            before = f"{optimizer.name} = "
            text = before + call_text("smp.DistributedOptimizer", [optimizer.name, *scaling], width=92, before=before)
            edits.insert_after(statement, statements(text))
        elif isinstance(survey.parent(optimizer.call), cst.Return):
            inner = text_of(optimizer.call)
            edits.replace(
                optimizer.call, expression(call_text("smp.DistributedOptimizer", [inner, *scaling], width=84))
            )
        else:
            draft.add_todo(f"`{draft.excerpt(optimizer.call)}`: wrap this optimizer with smp.DistributedOptimizer.")
    draft.apply(edits)
    if draft.target.fp16:
        _schedule_inner_optimizer(draft)


def _schedule_inner_optimizer(draft: Draft) -> None:
    """Pass the inner optimizer to schedules: in fp16 the wrapper is not a ``torch.optim.Optimizer``."""
    survey, edits = draft.survey, Edits()
    places = optimizer_places(survey)
    for call in survey.calls:
        if not is_schedule(survey, call):
            continue
        argument = keyword(call, "optimizer") or positional(call, 0)
        name = dotted(argument.value) if argument is not None else None
        if argument is not None and name is not None and name in names_of(survey, places, survey.function(call)):
            edits.replace(argument.value, expression(f"{name}.optimizer"))
    draft.apply(edits)


def is_schedule(survey: Survey, call: cst.Call) -> bool:
    """Whether a call creates a learning-rate schedule."""
    name = survey.callee(call)
    last = name.rpartition(".")[2]
    return (
        name.startswith("torch.optim.lr_scheduler.") or (last.startswith("get_") and "schedul" in last)
    ) and not survey.named(last)
