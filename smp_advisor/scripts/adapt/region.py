"""The statements of a loop from the forward to the backward pass, and whether they can move."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.reading.block_names import BlockNames, names_of_block
from smp_advisor.scripts.adapt.adaptation import sentence
from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import dotted, text_of, walk
from smp_advisor.scripts.adapt.roles import model_places
from smp_advisor.scripts.adapt.survey import Function, Statement, Survey, assigned_names, known_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.scripts.adapt.adaptation import Draft


def block_names(statements: Iterable[cst.CSTNode], defined: Iterable[str] = ()) -> BlockNames:
    """Names of statements in the order of execution."""
    body = [node for node in statements if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)]
    return names_of_block(ast.parse(cst.Module(body=body).code).body, defined=defined)


def changed_objects(node: cst.CSTNode) -> set[str]:
    """Objects that a statement changes: ``self.loss`` in ``self.loss = x``, ``losses`` in ``losses.append(x)``."""
    changed: set[str] = set()
    for inner in walk(node):
        if isinstance(inner, cst.Expr) and isinstance(inner.value, cst.Call):
            function = inner.value.func
            if isinstance(function, cst.Attribute) and function.attr.value != "backward":
                changed.add(dotted(function.value) or "")
        elif isinstance(inner, cst.AssignTarget | cst.AugAssign | cst.AnnAssign):
            stack: list[cst.CSTNode] = [inner.target]
            while stack:
                target = stack.pop()
                if isinstance(target, cst.Tuple | cst.List):
                    stack += [element.value for element in target.elements]
                elif isinstance(target, cst.Attribute):
                    changed.add(dotted(target) or "")
                elif isinstance(target, cst.Subscript):
                    changed.add(dotted(target.value) or "")
    return changed - {""}


def state_between_batches(survey: Survey, statements: list[Statement]) -> set[str]:
    """Names that the statements read from the previous iteration of a loop around them and replace."""
    own = block_names(statements)
    carried: set[str] = set()
    for loop in survey.loops(statements[0]):
        target = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)} if isinstance(loop, cst.For) else set()
        body = block_names(loop.body.body, defined=target)
        carried |= own.updated & set(body.read)
    return carried


def obstacle_to_moving(
    survey: Survey,
    moved: list[Statement],
    part: list[Statement],
    backwards: list[cst.Call],
    models: set[str],
) -> str:
    """Sentence that explains why a step function would change the meaning of the loop; empty if it would not."""
    own = block_names(moved)
    if own.leaving:
        return sentence("region_leaves", statement=own.leaving[0])
    carried = state_between_batches(survey, moved)
    if carried:
        return sentence("carried", name=min(carried))
    several = _several_backwards(survey, moved, part, backwards)
    if several is not None:
        return sentence("several_backwards", call=text_of(several))
    inside = set(own.bound) - set(own.read)
    for statement in moved:
        for spelling in sorted(changed_objects(statement)):
            if spelling.partition(".")[0] not in inside and spelling not in models:
                return sentence("changes_object", name=spelling)
    return ""


def replaced_values(
    moved: list[Statement], deferred: list[Statement], part: list[Statement]
) -> list[tuple[Statement, str, Statement]]:
    """Values that a later statement of the function replaces before a deferred statement reads them.

    Such as the loss that is printed before it is divided by the number of accumulated batches: the deferred statement,
    the name, and the statement of the function that replaces it.
    """
    replaced = []
    for statement in deferred:
        read = block_names([statement]).read
        for later in moved[:-1]:
            if part.index(later) > part.index(statement):
                replaced += [(statement, name, later) for name in block_names([later]).bound if name in read]
    return replaced


def _several_backwards(
    survey: Survey, moved: list[Statement], part: list[Statement], backwards: list[cst.Call]
) -> cst.Call | None:
    """A backward pass that runs in addition to that of the last statement; branches of one ``if`` are alternatives."""
    last = moved[-1]
    block = survey.body_of(last)
    for call in backwards:
        above = [call, *survey.ancestors(call)]
        if last in above:
            if not isinstance(last, cst.SimpleStatementLine | cst.If | cst.With):
                return call
            continue
        if any(statement in above for statement in block) or any(statement in above for statement in part):
            return call
    return None


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
        draft.add_todo("no_forward", call)
        return None
    first = _with_created_objects(survey, block, first, position, models)
    part = block[first : position + 1]
    if any(_is_update(node) for statement in part for node in walk(statement) if isinstance(node, cst.Call)):
        draft.add_todo("update_in_region", part[0])
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
