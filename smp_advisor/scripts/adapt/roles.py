"""The model, optimizer, loaders and update loops of a training script, found by what is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar, cast

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, names_of, spread
from smp_advisor.scripts.adapt.code import dotted, keyword, names_in, positional, walk
from smp_advisor.scripts.adapt.survey import Function, Survey, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Optimizer", "backward_calls", "loader_calls", "model_places", "optimizer_places", "optimizers"]

T = TypeVar("T")

# Optimizers that live outside torch.optim.
_OPTIMIZERS = frozenset(
    {"AdamW", "Adafactor", "FusedAdam", "FusedLAMB", "FusedSGD", "Lamb", "LAMB", "Lion", "Adam", "SGD"}
)
_SCHEDULES = "torch.optim.lr_scheduler"


def _remembered(find: Callable[[Survey], T]) -> Callable[[Survey], T]:
    """Work it out once for each survey."""

    @wraps(find)
    def remembered(survey: Survey) -> T:
        if find.__name__ not in survey.memory:
            survey.memory[find.__name__] = find(survey)
        return cast("T", survey.memory[find.__name__])

    return remembered


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """Where an optimizer is made."""

    call: cst.Call
    function: Function
    name: str | None
    """What it is assigned to; None where it is returned or passed on at once."""
    model: Place | None
    """Whose parameters it updates."""


@_remembered
def optimizers(survey: Survey) -> list[Optimizer]:
    """Every optimizer that the script makes, in order."""
    found = []
    for call in survey.calls:
        if not _makes_optimizer(survey, call):
            continue
        function = survey.function(call)
        parent = survey.parent(call)
        name = None
        if isinstance(parent, cst.Assign | cst.AnnAssign):
            name = next((dotted(target) for target in targets_of(parent)), None)
        found.append(Optimizer(call=call, function=function, name=name, model=_model_of(survey, call, function)))
    return found


def _makes_optimizer(survey: Survey, call: cst.Call) -> bool:
    name = survey.callee(call)
    if not name or name.startswith(_SCHEDULES) or not (call.args):
        return False
    if name.startswith("torch.optim."):
        return name.rpartition(".")[2][:1].isupper()
    last = name.rpartition(".")[2]
    if last in _OPTIMIZERS and not survey.classes_named(last):
        return True
    return (
        last[:1].isupper() and _parameters_of(call) is not None and "Distributed" not in last and "Parallel" not in last
    )


def _parameters_of(node: cst.CSTNode) -> str | None:
    """``model`` in ``model.parameters()`` or ``model.named_parameters()``, the first in the text."""
    for inner in walk(node):
        if (
            isinstance(inner, cst.Call)
            and isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value in ("parameters", "named_parameters")
        ):
            name = dotted(inner.func.value)
            if name is not None:
                return _root_of_module(name)
    return None


def _root_of_module(name: str) -> str:
    """``model`` for ``model.backbone``, ``self.model`` for ``self.model.head``."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "self" and len(parts) > 1 else parts[0]


def _model_of(survey: Survey, call: cst.Call, function: Function) -> Place | None:
    name = _parameters_of(call)
    if name is not None:
        return (function, name)
    given = keyword(call, "params") or positional(call, 0)
    if given is None:
        return None
    for variable in names_in(given.value):
        for assignment in reversed(survey.assignments(function, variable)):
            name = _parameters_of(assignment)
            if name is None and isinstance(assignment.value, cst.Call):
                # params = parameter_groups(model, ...)
                name = next((dotted(arg.value) for arg in assignment.value.args if dotted(arg.value)), None)
            if name is not None:
                return (function, name)
    if isinstance(given.value, cst.Call):
        name = next((dotted(arg.value) for arg in given.value.args if dotted(arg.value)), None)
        if name is not None:
            return (function, name)
    return None


@_remembered
def model_places(survey: Survey) -> set[Place]:
    """Every name of the model whose parameters are updated."""
    found: set[Place] = set()
    for optimizer in optimizers(survey):
        if optimizer.model is not None:
            found |= spread(survey, optimizer.model)
    return found


@_remembered
def optimizer_places(survey: Survey) -> set[Place]:
    """Every name of an optimizer."""
    found: set[Place] = set()
    for optimizer in optimizers(survey):
        if optimizer.name is not None:
            found |= spread(survey, (optimizer.function, optimizer.name))
    for function in survey.functions:
        # An optimizer that a helper returns at once has its name where the helper is called.
        makes = any(
            o.name is None and o.function is function and _is_returned(survey, o.call) for o in optimizers(survey)
        )
        if not makes:
            continue
        for call in survey.calls:
            parent = survey.parent(call)
            if dotted(call.func) in (function.name.value, f"self.{function.name.value}") and isinstance(
                parent, cst.Assign
            ):
                for target in targets_of(parent):
                    if dotted(target) is not None:
                        found |= spread(survey, (survey.function(call), str(dotted(target))))
    return found


def _is_returned(survey: Survey, call: cst.Call) -> bool:
    for above in survey.ancestors(call):
        if isinstance(above, cst.Return):
            return True
        if not isinstance(above, cst.Arg | cst.Call):
            return False
    return False


def backward_calls(survey: Survey) -> list[cst.Call]:
    """``loss.backward()`` in any form; calls of ``backward`` on the model are none."""
    models = model_places(survey)
    found = []
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "backward":
            continue
        owner = dotted(call.func.value)
        if owner is not None and owner in names_of(survey, models, survey.function(call)):
            continue
        if survey.qualified(call.func.value).split(".")[0] == "torch" or (
            call.args and owner in ("accelerator", "fabric")
        ):
            continue
        found.append(call)
    return found


def loader_calls(survey: Survey) -> list[cst.Call]:
    """Calls that make a ``torch.utils.data.DataLoader``."""
    return [
        call
        for call in survey.calls
        if survey.callee(call) == "torch.utils.data.DataLoader"
        or survey.callee(call) == "torch.utils.data.dataloader.DataLoader"
    ]
