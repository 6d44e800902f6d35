"""The statement that constructs the model, its repeated layers, and the wrapper around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from smp_advisor.scripts.adapt.code import Edits, dotted, statements
from smp_advisor.scripts.adapt.roles import Place, aliases_of, call_arguments, callees, optimizers, source_of

if TYPE_CHECKING:
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


def find_constructions(draft: Draft) -> list[Construction]:
    """Constructions of all models that the script trains, with a to-do for each that cannot be determined."""
    survey = draft.survey
    constructions: list[Construction] = []
    visited: set[frozenset[Place]] = set()
    for optimizer in optimizers(survey):
        if optimizer.model is None:
            continue
        places = frozenset(aliases_of(survey, optimizer.model))
        if places in visited:
            continue
        visited.add(places)
        construction = _trace(survey, optimizer.model, survey.statement(optimizer.call), set())
        if construction is None:
            draft.add_todo("no_construction", name=optimizer.model[1])
        elif construction.statement not in [earlier.statement for earlier in constructions]:
            constructions.append(construction)
    if not visited:
        draft.add_todo("no_optimizer")
    return constructions


def find_construction(draft: Draft) -> Construction | None:
    """Construction of the only model that the script trains; None, with a to-do, if it cannot be determined."""
    survey = draft.survey
    trained = [optimizer.model for optimizer in optimizers(survey) if optimizer.model is not None]
    count = len({frozenset(aliases_of(survey, model)) for model in trained})
    if count > 1:
        draft.abandon("several_models", count=count, names=", ".join(sorted({name for _, name in trained})))
        return None
    return next(iter(find_constructions(draft)), None)


def _trace(survey: Survey, place: Place, before: Statement | None, visited: set[Place]) -> Construction | None:  # noqa: C901 - a list of cases
    if place in visited:
        return None
    visited.add(place)
    function, name = place
    assignments = [
        a
        for a in survey.assignments(function, name)
        if a.value is not None
        and _constructs(survey, a.value)
        # An assignment after the optimizer is another model, for example the best one loaded from a checkpoint.
        and (before is None or survey.function(before) is not function or not survey.follows(before, a))
    ]
    if assignments:
        return _from_assignments(survey, place, assignments, before, visited)
    if function is None:
        return None
    if name in survey.parameters(function):
        for call in survey.calls:
            for called, skipped in callees(survey, call):
                if called is function:
                    arg = call_arguments(survey, call, function, skipped).get(name)
                    argument_name = dotted(arg.value) if arg is not None else None
                    if argument_name is not None:
                        construction = _trace(
                            survey, (survey.function(call), argument_name), survey.statement(call), visited
                        )
                        if construction is not None:
                            return construction
        return None
    owner = survey.class_of(function)
    if name.startswith("self.") and owner is not None:
        for method in survey.functions:
            if survey.class_of(method) is owner and survey.assignments(method, name):
                return _trace(survey, (method, name), None, visited)
        return None
    return _trace(survey, (None, name), before, visited)


def _from_assignments(
    survey: Survey,
    place: Place,
    assignments: list[cst.Assign | cst.AnnAssign],
    before: Statement | None,
    visited: set[Place],
) -> Construction | None:
    function, name = place
    first = assignments[0]
    source = source_of(survey, cast("cst.BaseExpression", first.value))
    if source is not None and source != name:
        # self.model = model.to(device): constructed where `model` is assigned.
        construction = _trace(survey, (function, source), survey.statement(first), visited)
        if construction is not None:
            return construction
    assigning = [assigned for a in assignments if (assigned := survey.statement(a)) is not None]
    for statement in [assigning[0], *survey.ancestors(assigning[0])]:
        block = survey.body_of(statement)
        if not block:
            continue
        if statement is function:
            break
        containing: list[Statement | None] = [_containing(survey, node, block) for node in assigning]
        if None not in containing:
            stop = _containing(survey, before, block)
            limit = block.index(stop) if stop is not None else len(block)
            earlier = [s for s in containing if s is not None and block.index(s) < limit]
            earlier = earlier or [cast("Statement", statement)]
            return Construction(function=function, name=name, statement=earlier[0], last=earlier[-1], use=stop)
    # The model is constructed in separate branches: only the user knows where to wrap it.
    return None


def _containing(survey: Survey, node: Statement | None, block: list[Statement]) -> Statement | None:
    """The statement of the block that is the node or contains it."""
    if node is None:
        return None
    return cast("Statement | None", next((above for above in (node, *survey.ancestors(node)) if above in block), None))


def _constructs(survey: Survey, value: cst.BaseExpression) -> bool:
    """Whether a value is a model: neither None nor a wrapper added by an earlier step."""
    if dotted(value) == "None":
        return False
    return not (
        isinstance(value, cst.Call) and survey.callee(value).endswith((".DistributedModel", "sagemaker.transform"))
    )


LAYER_CLASSES = """layer_classes = {{
    type(layer) for stack in {name}.modules() if isinstance(stack, torch.nn.ModuleList) for layer in stack
}}
"""
"""Statement that finds the classes of the repeated layers when it runs, also those of another file."""


def wrap_construction(draft: Draft, construction: Construction, *, context: str, wrap: str) -> None:
    """Put the construction into `context` (a ``with`` header, or empty), and insert `wrap` after its last statement."""
    edits = Edits()
    after = statements(wrap)
    if context:
        alone = construction.last is construction.statement

        def indent(new: Any) -> Any:
            block = cst.ensure_type(statements(f"{context}:\n    pass\n")[0], cst.With)
            block = block.with_changes(
                leading_lines=new.leading_lines,
                body=block.body.with_changes(body=[new.with_changes(leading_lines=[])]),
            )
            return cst.FlattenSentinel([block, *(after if alone else [])])

        edits.change(construction.statement, indent)
    if not context or construction.last is not construction.statement:
        edits.insert_after(construction.last, after)
    draft.apply(edits)
