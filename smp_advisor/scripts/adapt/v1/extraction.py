"""Whether statements of a loop can move into a ``@smp.step`` function without changing their meaning."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.reading.block_names import BlockNames, names_of_block
from smp_advisor.scripts.adapt.code import dotted, text_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.scripts.adapt.survey import Statement, Survey

__all__ = [
    "NEAREST",
    "block_names",
    "changed_objects",
    "obstacle_to_moving",
    "replaced_values",
    "state_between_batches",
]

NEAREST = "Adapt it with library='ddp', 'fsdp' or 'fsdp2', which leave the training loop as it is."
"""The nearest adaptation that works if a loop cannot be moved."""


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
    """Sentence that explains why a step function would change the meaning of the loop; empty if it would not.

    Parameters
    ----------
    moved
        Statements of `part` that move into the function.
    part
        Statements from the forward pass to the backward pass.
    backwards
        All backward passes of the script.
    models
        Names of the model.
    """
    own = block_names(moved)
    if own.leaving:
        return (
            f"The statements between forward and backward pass contain `{own.leaving[0]}`, and smp.step runs them once"
            f" per microbatch in a function of its own."
        )
    carried = state_between_batches(survey, moved)
    if carried:
        return (
            f"`{min(carried)}` is carried from batch to batch, and smp.step splits a batch into microbatches,"
            " which do not have the state of the batch before."
        )
    several = _several_backwards(survey, moved, part, backwards)
    if several is not None:
        return (
            f"`{text_of(several)}` is a second backward pass in the same iteration, and smp.step runs one forward and"
            " one backward pass per microbatch."
        )
    inside = set(own.bound) - set(own.read)
    for statement in moved:
        for spelling in sorted(changed_objects(statement)):
            if spelling.partition(".")[0] not in inside and spelling not in models:
                return (
                    f"`{spelling}` is changed between forward and backward pass, and a function that runs once per"
                    " microbatch would change it once per microbatch."
                )
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
