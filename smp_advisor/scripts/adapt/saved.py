"""Calls of ``torch.save`` and ``save_pretrained`` in a script: the content, and the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import dotted, keyword, positional, text_of, walk
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.survey import Statement, Survey

__all__ = ["Saved", "is_rank_guard", "saved_states"]

_RANK_WORDS = ("rank", "gpu_id", "is_main_process", "is_master", "master_process")


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One call that saves the state of the model."""

    call: cst.Call
    statement: Statement
    """The ``with open(...)`` block of a save to an open file."""
    model: str
    optimizer: str | None = None
    """None if the state of the optimizer is not saved."""
    content: tuple[tuple[str, str], ...] = ()
    """Other entries of the saved dictionary: source code of key and value."""
    value: cst.BaseExpression
    """The saved object."""
    path: cst.BaseExpression
    plain: bool = True
    """Whether the expression of the saved object is known, so that it can be split into its entries."""
    pretrained: bool = False
    """Whether it is ``model.save_pretrained(folder)`` of transformers, where `path` is a folder."""


def saved_states(survey: Survey) -> list[Saved]:
    """Calls of ``torch.save`` with the state of a model, and of ``model.save_pretrained``."""
    states = []
    for call in survey.calls:
        statement = survey.statement(call)
        if statement is None:
            continue
        function = survey.function(call)
        models = names_of(survey, model_places(survey), function)
        if survey.callee(call) == "torch.save":
            content = keyword(call, "obj") or positional(call, 0)
            path = keyword(call, "f") or positional(call, 1)
            if content is None or path is None:
                continue
            value, plain = content.value, True
            target, statement, plain = _opened(survey, path.value, statement)
            if isinstance(value, cst.Name) and value.value not in models:
                assignments = survey.assignments(function, value.value)
                if len(assignments) == 1 and assignments[0].value is not None:
                    value = assignments[0].value
                else:
                    plain = False
            saved = _parse_state(survey, call, statement, value=value, path=target, models=models, plain=plain)
            if saved is not None:
                states.append(saved)
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "save_pretrained" and call.args:
            owner = (dotted(call.func.value) or "").removesuffix(".module")
            if owner in models:
                folder = call.args[0].value
                states.append(
                    Saved(call=call, statement=statement, model=owner, value=call.func, path=folder, pretrained=True)
                )
    return states


def _parse_state(
    survey: Survey,
    call: cst.Call,
    statement: Statement,
    *,
    value: cst.BaseExpression,
    path: cst.BaseExpression,
    models: set[str],
    plain: bool,
) -> Saved | None:
    optimizers = names_of(survey, optimizer_places(survey), survey.function(call))
    model = _state_of(value, models)
    module = (dotted(value) or "").removesuffix(".module")
    if model is None and module in models:
        # torch.save(model, path)
        model = module
    if model is not None:
        return Saved(call=call, statement=statement, model=model, value=value, path=path, plain=plain)
    entries = _entries(value)
    if entries is None:
        return None
    optimizer, further = None, []
    for key, entry in entries:
        state = _state_of(entry, models)
        if state is not None:
            model = state
        elif (owner := _state_of(entry, optimizers)) is not None:
            optimizer = owner
        else:
            further.append((key, text_of(entry)))
    if model is None:
        return None
    return Saved(
        call=call,
        statement=statement,
        model=model,
        optimizer=optimizer,
        content=tuple(further),
        value=value,
        path=path,
        plain=plain,
    )


def _opened(
    survey: Survey, path: cst.BaseExpression, statement: Statement
) -> tuple[cst.BaseExpression, Statement, bool]:
    """Path, statement and whether both are known, of a save to ``with open(path, "wb") as file``."""
    for above in survey.ancestors(statement):
        if not isinstance(above, cst.With):
            continue
        for item in above.items:
            name = item.asname.name if item.asname is not None else None
            if name is None or dotted(name) != dotted(path):
                continue
            opening = item.item
            if (
                isinstance(opening, cst.Call)
                and dotted(opening.func) == "open"
                and opening.args
                and len(above.items) == 1
                and len(above.body.body) == 1
                and above.body.body[0] is statement
            ):
                return opening.args[0].value, above, True
            return path, statement, False
    return path, statement, True


def _entries(value: cst.BaseExpression) -> list[tuple[str, cst.BaseExpression]] | None:
    if isinstance(value, cst.Dict) and all(isinstance(element, cst.DictElement) for element in value.elements):
        return [(text_of(e.key), e.value) for e in value.elements if isinstance(e, cst.DictElement)]
    if isinstance(value, cst.Call) and dotted(value.func) == "dict" and all(arg.keyword for arg in value.args):
        return [(f'"{arg.keyword.value}"', arg.value) for arg in value.args if arg.keyword is not None]
    return None


def _state_of(value: cst.BaseExpression, names: set[str]) -> str | None:
    """``model`` in ``model.state_dict()`` and ``model.module.state_dict()``."""
    if not (
        isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "state_dict"
    ):
        return None
    owner = dotted(value.func.value) or ""
    owner = owner.removesuffix(".module")
    return owner if owner in names else None


def is_rank_guard(test: cst.BaseExpression) -> bool:
    """Whether a condition only selects processes: ``rank == 0``, ``smp.dp_rank() == 0``, ``is_main_process``."""
    text = text_of(test)
    if any(isinstance(node, cst.BooleanOperation) for node in walk(test)):
        return False
    return any(word in text for word in _RANK_WORDS)
