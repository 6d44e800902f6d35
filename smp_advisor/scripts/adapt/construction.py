"""Where the model comes into being, and the last statement before its optimizer that makes it anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, call_arguments, callees, source_of, spread
from smp_advisor.scripts.adapt.code import dotted, spelled, statements, walk
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.roles import optimizers

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Function, Statement, Survey

__all__ = ["Construction", "find_construction"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Construction:
    """The statement that makes the model, a branching one too, and those of its block that make it anew."""

    function: Function
    name: str
    statement: Statement
    """Constructs the model."""
    last: Statement
    """Last statement of the block that assigns it before the optimizer is built: what wraps it comes behind."""


def find_construction(draft: Draft) -> Construction | None:
    """The one model that the script trains; None, with a to-do, where there is no saying which."""
    _name_argument(draft)
    survey = draft.survey
    made = [optimizer for optimizer in optimizers(survey) if optimizer.model is not None]
    if not made:
        draft.leave_to_do("No optimizer was found that is built from a model's parameters: wrap model and optimizer.")
        return None
    places = [frozenset(spread(survey, optimizer.model)) for optimizer in made if optimizer.model is not None]
    if len(set(places)) > 1:
        names = sorted({optimizer.model[1] for optimizer in made if optimizer.model is not None})
        draft.give_up(
            f"The script trains {len(set(places))} models ({', '.join(names)}), and the library wraps one a script:"
            " join them in one module, or train one only."
        )
        return None
    optimizer = made[0]
    model = cast("Place", optimizer.model)
    found = _trace(survey, model, survey.statement(optimizer.call), set())
    if found is None:
        draft.leave_to_do(f"No statement was found that creates `{model[1]}`: wrap the model where it is created.")
    return found


def _name_argument(draft: Draft) -> None:
    """``Trainer(Net(), ...)`` becomes ``model = Net()`` and ``Trainer(model, ...)``: what is wrapped needs a name."""
    survey = draft.survey
    for function, name in {
        place for o in optimizers(survey) if o.model is not None for place in spread(survey, o.model)
    }:
        if function is None or name not in survey.parameters(function):
            continue
        for call in survey.calls:
            for called, skipped in callees(survey, call):
                arg = call_arguments(survey, call, function, skipped).get(name) if called is function else None
                statement = survey.statement(call)
                if (
                    arg is None
                    or not isinstance(arg.value, cst.Call)
                    or not isinstance(statement, cst.SimpleStatementLine)
                ):
                    continue
                fresh = name if name not in _names_at(survey, call) else survey.free_name("model", "trained_model")
                edits = Edits()
                edits.insert_before(statement, statements(f"{fresh} = {spelled(arg.value)}\n"))
                edits.replace(arg.value, cst.Name(fresh))
                draft.apply(edits)
                return


def _names_at(survey: Survey, node: cst.CSTNode) -> set[str]:
    function = survey.function(node)
    names = survey.module_names()
    if function is not None:
        names |= {n.value for n in walk(function) if isinstance(n, cst.Name)}
    return names


def _trace(survey: Survey, place: Place, before: Statement | None, seen: set[Place]) -> Construction | None:  # noqa: C901 - a list of cases
    if place in seen:
        return None
    seen.add(place)
    function, name = place
    own = [
        a
        for a in survey.assignments(function, name)
        if a.value is not None
        and _constructs(survey, a.value)
        # What is assigned after the optimizer is another model: the best one read back, say.
        and (before is None or survey.function(before) is not function or not survey.follows(before, a))
    ]
    if own:
        return _from_assignments(survey, place, own, before, seen)
    if function is None:
        return None
    if name in survey.parameters(function):
        for call in survey.calls:
            for called, skipped in callees(survey, call):
                if called is function:
                    arg = call_arguments(survey, call, function, skipped).get(name)
                    given = dotted(arg.value) if arg is not None else None
                    if given is not None:
                        found = _trace(survey, (survey.function(call), given), survey.statement(call), seen)
                        if found is not None:
                            return found
        return None
    owner = survey.class_of(function)
    if name.startswith("self.") and owner is not None:
        for method in survey.functions:
            if survey.class_of(method) is owner and survey.assignments(method, name):
                return _trace(survey, (method, name), None, seen)
        return None
    return _trace(survey, (None, name), before, seen)


def _from_assignments(
    survey: Survey, place: Place, own: list[cst.Assign | cst.AnnAssign], before: Statement | None, seen: set[Place]
) -> Construction | None:
    function, name = place
    first = own[0]
    source = source_of(survey, cast("cst.BaseExpression", first.value))
    if source is not None and source != name:
        # self.model = model.to(device): made where the other name is.
        found = _trace(survey, (function, source), survey.statement(first), seen)
        if found is not None:
            return found
    statements_of_model = [held for a in own if (held := survey.statement(a)) is not None]
    for statement in [statements_of_model[0], *survey.ancestors(statements_of_model[0])]:
        block = survey.body_of(statement)
        if not block:
            continue
        holders: list[Statement | None] = [_holder(survey, other, block) for other in statements_of_model]
        if None not in holders and (len(set(holders)) == 1 or holders[0] is statements_of_model[0]):
            stop = _holder(survey, before, block)
            limit = block.index(stop) if stop is not None else len(block)
            kept = [h for h in holders if h is not None and block.index(h) < limit] or [cast("Statement", statement)]
            return Construction(function=function, name=name, statement=kept[0], last=kept[-1])
        if statement is function:
            break
    # Branches that make it one way or the other: the place is after them, which only a person can tell.
    return None


def _holder(survey: Survey, node: Statement | None, block: list[Statement]) -> Statement | None:
    """Statement of the block that is or holds the node."""
    if node is None:
        return None
    return cast("Statement | None", next((above for above in (node, *survey.ancestors(node)) if above in block), None))


def _constructs(survey: Survey, value: cst.BaseExpression) -> bool:
    """Not a placeholder, and not what an earlier step put there."""
    if dotted(value) == "None":
        return False
    return not (
        isinstance(value, cst.Call) and survey.callee(value).endswith((".DistributedModel", "sagemaker.transform"))
    )
