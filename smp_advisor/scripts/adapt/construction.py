"""The statement that constructs the model, its repeated layers, and the wrapper around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from smp_advisor.scripts.adapt.code import Edits, dotted, statements, without_moves
from smp_advisor.scripts.adapt.roles import Objects, Optimizer, objects_of, optimizers, reaches
from smp_advisor.scripts.adapt.survey import targets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Function, Statement, Survey


@dataclass(frozen=True, kw_only=True, slots=True)
class Construction:
    """The statements of one block that construct and reassign the model."""

    function: Function
    name: str
    statement: Statement
    """Constructs the model; may be an ``if`` statement whose branches do."""
    last: Statement
    """Last statement of the block that assigns the model before the optimizer is built; the wrapper follows it."""
    use: Statement | None
    """Statement of the block that builds the optimizer, or calls the function that does; None if it is elsewhere."""
    objects: Objects
    """The model."""


def find_constructions(draft: Draft) -> list[Construction]:
    """Constructions of all models that the script trains, with a to-do for each that cannot be determined."""
    survey = draft.survey
    constructions: list[Construction] = []
    visited: set[Objects] = set()
    for optimizer, model in ((each, model) for each in optimizers(survey) for model in each.models):
        if model in visited:
            continue
        visited.add(model)
        construction = _construction(survey, optimizer, model)
        if construction is None:
            draft.add_todo("no_construction", name=optimizer.model_name)
        elif (construction.statement, construction.name) not in [(c.statement, c.name) for c in constructions]:
            constructions.append(construction)
    if not visited:
        draft.add_todo("no_optimizer")
    return constructions


def find_construction(draft: Draft) -> Construction | None:
    """Construction of the only model that the script trains; None, with a to-do, if it cannot be determined."""
    trained = {model: optimizer.model_name for optimizer in optimizers(draft.survey) for model in optimizer.models}
    if len(trained) > 1:
        draft.abandon("several_models", count=len(trained), names=", ".join(sorted(set(trained.values()))))
        return None
    return next(iter(find_constructions(draft)), None)


def _construction(survey: Survey, optimizer: Optimizer, model: Objects) -> Construction | None:
    """The assignments of the model: in the function of its optimizer, at module level, or in the last other one."""
    groups: dict[tuple[bool, Function, str], list[Statement]] = {}
    for node, target, value in ((owner, *pair) for owner in survey.nodes for pair in _assigned(owner)):
        name = dotted(target)
        if name is None or not objects_of(survey, target) & model:
            continue
        alias = dotted(without_moves(value))
        statement, function = survey.statement(node), survey.function(node)
        wraps = isinstance(value, cst.Call) and survey.callee(value).endswith((".DistributedModel", ".transform"))
        # An assignment after the optimizer is another model, for example the best one loaded from a checkpoint.
        late = function is optimizer.function and survey.follows(optimizer.call, node)
        if statement is not None and not wraps and not late:
            # self.model = model: constructed where `model` is assigned, if that is in the file.
            groups.setdefault((alias in (None, name), function, name), []).append(statement)
    order = sorted(groups, key=lambda key: (key[0], key[1] is optimizer.function, key[1] is None))
    constructions = (_in_block(survey, key[1], key[2], groups[key], optimizer, model) for key in reversed(order))
    return next((construction for construction in constructions if construction is not None), None)


def _assigned(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """The first target of an assignment with its value; ``a, b = f(), g()`` and ``a, b = f()`` have two."""
    target = next(iter(targets_of(node)), None)
    value = node.value if isinstance(node, cst.Assign | cst.AnnAssign) else None
    if isinstance(target, cst.Tuple) and value is not None:
        values = [v.value for v in value.elements] if isinstance(value, cst.Tuple) else [value] * len(target.elements)
        yield from zip((element.value for element in target.elements), values, strict=False)
    elif target is not None and value is not None:
        yield target, value


def _in_block(
    survey: Survey, function: Function, name: str, assigning: list[Statement], optimizer: Optimizer, model: Objects
) -> Construction | None:
    """The construction in the innermost block with all assignments; None if only the user knows where to wrap it."""
    for statement in [assigning[0], *survey.ancestors(assigning[0])]:
        block = survey.body_of(statement)
        if statement is function:
            break
        containing = [_containing(survey, node, block) for node in assigning]
        if block and None not in containing:
            stop = next((s for s in block if s not in containing and reaches(survey, s, {optimizer.call}, 4)), None)
            stop = stop or _containing(survey, survey.statement(optimizer.call), block)
            limit = block.index(stop) if stop is not None else len(block)
            earlier = [s for s in containing if s is not None and block.index(s) < limit]
            earlier = earlier or [cast("Statement", statement)]
            return Construction(
                function=function, name=name, statement=earlier[0], last=earlier[-1], use=stop, objects=model
            )
    return None


def _containing(survey: Survey, node: Statement | None, block: list[Statement]) -> Statement | None:
    """The statement of the block that is the node or contains it."""
    if node is None:
        return None
    return cast("Statement | None", next((above for above in (node, *survey.ancestors(node)) if above in block), None))


LAYER_CLASSES = """layer_classes = {{
    type(layer) for stack in {name}.modules() if isinstance(stack, torch.nn.ModuleList) for layer in stack
}}
"""
"""Statement that finds the classes of the repeated layers when it runs, also those of another file."""


def wrap_construction(draft: Draft, construction: Construction, *, context: str, wrap: str) -> None:
    """Put the construction into `context` (a ``with`` header, or empty), and insert `wrap` after its last statement."""
    edits = Edits()
    edits.insert_after(construction.last, statements(wrap))
    if context:
        block = cst.ensure_type(statements(f"{context}:\n    pass\n")[0], cst.With)

        def indent(new: Any) -> Any:
            body = block.body.with_changes(body=[new.with_changes(leading_lines=[])])
            return block.with_changes(leading_lines=new.leading_lines, body=body)

        edits.change(construction.statement, indent)
    draft.apply(edits)
