"""What a script saves, and where: read from ``torch.save`` and its kin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import dotted, keyword, positional, spelled, walk
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.survey import Statement, Survey

__all__ = ["Saved", "is_rank_guard", "saved_states"]

_RANK_WORDS = ("rank", "is_main_process", "is_master", "master_process")


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One call that writes the model's state."""

    call: cst.Call
    statement: Statement
    model: str
    optimizer: str | None
    """None where the optimizer's state is not saved."""
    content: tuple[tuple[str, str], ...]
    """Further entries: key and value as text."""
    value: cst.BaseExpression
    """What is saved."""
    path: cst.BaseExpression
    plain: bool
    """Whether the object saved is spelled out in the call or right above it, so that it can be taken apart."""
    pretrained: bool = False
    """``model.save_pretrained(folder)`` of transformers: `path` is a folder."""


def saved_states(survey: Survey) -> list[Saved]:
    """Calls of ``torch.save`` with a model's state, and ``model.save_pretrained``."""
    found = []
    for call in survey.calls:
        statement = survey.statement(call)
        if statement is None:
            continue
        function = survey.function(call)
        models = names_of(survey, model_places(survey), function)
        if survey.callee(call) == "torch.save":
            given = keyword(call, "obj") or positional(call, 0)
            path = keyword(call, "f") or positional(call, 1)
            if given is None or path is None:
                continue
            value, plain = given.value, True
            if isinstance(value, cst.Name) and value.value not in models:
                made = survey.assignments(function, value.value)
                if len(made) == 1 and made[0].value is not None:
                    value = made[0].value
                else:
                    plain = False
            saved = _take_apart(survey, call, statement, value=value, path=path.value, models=models, plain=plain)
            if saved is not None:
                found.append(saved)
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "save_pretrained" and call.args:
            owner = (dotted(call.func.value) or "").removesuffix(".module")
            if owner in models:
                found.append(_pretrained(call, statement, owner))
    return found


def _pretrained(call: cst.Call, statement: Statement, model: str) -> Saved:
    return Saved(
        call=call,
        statement=statement,
        model=model,
        optimizer=None,
        content=(),
        value=call.func,
        path=call.args[0].value,
        plain=True,
        pretrained=True,
    )


def _take_apart(
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
    if model is not None:
        return Saved(
            call=call, statement=statement, model=model, optimizer=None, content=(), value=value, path=path, plain=plain
        )
    name = (dotted(value) or "").removesuffix(".module")
    if name in models:
        # torch.save(model, path): the module itself.
        return Saved(
            call=call,
            statement=statement,
            model=name,
            optimizer=None,
            content=(),
            value=value,
            path=path,
            plain=plain,
        )
    entries = _entries(value)
    if entries is None:
        return None
    optimizer, rest = None, []
    for key, entry in entries:
        state = _state_of(entry, models)
        if state is not None:
            model = state
        elif (found := _state_of(entry, optimizers)) is not None:
            optimizer = found
        else:
            rest.append((key, spelled(entry)))
    if model is None:
        return None
    return Saved(
        call=call,
        statement=statement,
        model=model,
        optimizer=optimizer,
        content=tuple(rest),
        value=value,
        path=path,
        plain=plain,
    )


def _entries(value: cst.BaseExpression) -> list[tuple[str, cst.BaseExpression]] | None:
    if isinstance(value, cst.Dict) and all(isinstance(element, cst.DictElement) for element in value.elements):
        return [(spelled(e.key), e.value) for e in value.elements if isinstance(e, cst.DictElement)]
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
    """A condition about the process alone: ``rank == 0``, ``smp.dp_rank() == 0``, ``is_main_process``."""
    text = spelled(test)
    if any(isinstance(node, cst.BooleanOperation) for node in walk(test)):
        return False
    return any(word in text for word in _RANK_WORDS)
