"""The statements of a loop from the forward pass to the backward pass, and where each of them goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import dotted, walk
from smp_advisor.scripts.adapt.known_names import known_names
from smp_advisor.scripts.adapt.roles import model_places
from smp_advisor.scripts.adapt.survey import Function, Statement, Survey, assigned_names
from smp_advisor.scripts.adapt.v1.extraction import block_names, changed_objects

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["Region", "find_region", "is_forward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Statements of one block from the forward pass to the backward pass, and where each of them goes."""

    function: Function
    block: list[Statement]
    moved: list[Statement]
    """Move into the function."""
    hoisted: list[Statement]
    """Stay in the loop, before the call of the function."""
    deferred: list[Statement]
    """Stay in the loop, after the call of the function."""
    part: list[Statement]
    """All statements from the forward pass to the backward pass."""
    backward: cst.Call
    models: set[str]


def find_region(draft: Draft, call: cst.Call) -> Region | None:
    """The region of a backward pass; None, with a to-do, if its forward pass is in another place."""
    survey = draft.survey
    function = survey.function(call)
    models = names_of(survey, model_places(survey), function)
    here = survey.statement(call)
    while here is not None:
        block = survey.body_of(here)
        position = block.index(here) if here in block else 0
        first = next((n for n, s in enumerate(block[: position + 1]) if is_forward(survey, s, models)), None)
        if first is not None:
            break
        above = survey.parent(here)
        above = survey.parent(above) if isinstance(above, cst.IndentedBlock) else above
        here = above if isinstance(above, cst.With | cst.If) else None
    if here is None or first is None:
        draft.add_todo(
            f"`{draft.excerpt(call)}`: the forward pass of this loss was not found in the same loop. Move both into one"
            " function with @smp.step, and call model.backward(loss) there."
        )
        return None
    first = _with_created_objects(survey, block, first, position, models)
    part = block[first : position + 1]
    if any(_is_update(node) for statement in part for node in walk(statement) if isinstance(node, cst.Call)):
        draft.add_todo(
            f"`{draft.excerpt(part[0])}` contains the forward pass, the backward pass and the update in one block: move"
            " the update (optimizer.step()) after the @smp.step function."
        )
        return None
    moved, hoisted, deferred = _split(survey, part, models)
    return Region(
        function=function,
        block=block,
        moved=moved,
        hoisted=hoisted,
        deferred=deferred,
        part=part,
        backward=call,
        models=models,
    )


def _with_created_objects(survey: Survey, block: list[Statement], first: int, position: int, models: set[str]) -> int:
    """Position of the first statement to move: where the lists and sums are created that the statements fill."""
    for _ in range(8):
        moved, _, _ = _split(survey, block[first : position + 1], models)
        filled = {name.partition(".")[0] for statement in moved for name in changed_objects(statement)}
        objects = (filled | block_names(moved).updated) - models
        earlier = [n for n, s in enumerate(block[:first]) if objects & set(block_names([s]).bound)]
        if not earlier:
            return first
        first = earlier[-1]
    return first


def is_forward(survey: Survey, statement: cst.CSTNode, models: set[str]) -> bool:
    """Whether the statement runs the model, directly or in a function of the script."""
    for node in walk(statement):
        if not isinstance(node, cst.Call):
            continue
        name = dotted(node.func)
        if name in models:
            return True
        if name is None:
            continue
        last = name.rpartition(".")[2]
        # loss = model.loss(batch) is a forward pass; model.unshard() alone is not.
        if name.rpartition(".")[0] in models and last not in _NOT_FORWARD and assigned_names(statement):
            return True
        local = [f for f in survey.named(last) if name in (last, f"self.{last}")]
        gets_model = name.startswith("self.") or any(dotted(arg.value) in models for arg in node.args)
        if gets_model and any(_runs_model(survey, f) for f in local):
            return True
    return False


_NOT_FORWARD = known_names("methods_without_forward_pass")


def _runs_model(survey: Survey, function: cst.FunctionDef) -> bool:
    inner = names_of(survey, model_places(survey), function)
    return any(isinstance(node, cst.Call) and dotted(node.func) in inner for node in walk(function))


def _is_update(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "step" and not call.args


def _split(
    survey: Survey, part: list[Statement], models: set[str]
) -> tuple[list[Statement], list[Statement], list[Statement]]:
    """Statements that compute the loss, ``zero_grad`` calls to run before them, and other statements to run after."""
    moved = [part[-1]]
    hoisted: list[Statement] = []
    deferred: list[Statement] = []
    needed = _spellings(part[-1])
    for statement in reversed(part[:-1]):
        assigned = assigned_names(statement)
        changed = changed_objects(statement)
        if (assigned | changed) & needed or (is_forward(survey, statement, models) and (assigned or changed)):
            moved.insert(0, statement)
            needed |= _spellings(statement) - models
        elif any(isinstance(node, cst.Attribute) and node.attr.value == "zero_grad" for node in walk(statement)):
            hoisted.insert(0, statement)
        else:
            deferred.insert(0, statement)
    return moved, hoisted, deferred


def _spellings(node: cst.CSTNode) -> set[str]:
    """Names and attributes in a statement: ``self`` and ``self.loss`` for ``self.loss``."""
    return {text for inner in walk(node) if isinstance(inner, cst.Name | cst.Attribute) and (text := dotted(inner))}
