"""Step: remove PyTorch mixed precision from the loop, because the library or FSDP applies it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, aliases_of, names_of
from smp_advisor.scripts.adapt.code import dotted, expression, text_of
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import drop_unused_imports
from smp_advisor.scripts.adapt.known_names import known_names
from smp_advisor.scripts.adapt.survey import Survey, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["AUTOCAST", "SCALER", "remove_mixed_precision", "scalers"]

AUTOCAST = frozenset(known_names("autocast"))
SCALER = frozenset(known_names("gradient_scalers"))


def scalers(survey: Survey) -> list[cst.Call]:
    """Calls that create a PyTorch gradient scaler."""
    return [call for call in survey.calls if survey.callee(call) in SCALER]


def remove_mixed_precision(draft: Draft) -> None:  # noqa: C901 - a list of cases
    """Remove ``autocast`` and the gradient scaler; keep the code inside them."""
    survey, edits = draft.survey, Edits()
    places: set[Place] = set()
    for call in scalers(survey):
        parent = survey.parent(call)
        if isinstance(parent, cst.Assign | cst.AnnAssign):
            statement = survey.statement(call)
            for target in targets_of(parent):
                name = dotted(target)
                if name is not None:
                    places |= aliases_of(survey, (survey.function(call), name))
            if statement is not None:
                edits.remove(statement)
        else:
            draft.add_todo(
                f"`{draft.excerpt(call)}`: remove this gradient scaler, because the library scales the loss."
            )
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute):
            continue
        owner = dotted(call.func.value)
        if owner is not None and owner in names_of(survey, places, survey.function(call)):
            _drop_use(draft, edits, call)
    _drop_arguments(draft, edits, places)
    for node in survey.nodes:
        if isinstance(node, cst.With):
            _drop_autocast(draft, edits, node)
        elif isinstance(node, cst.Decorator) and _is_call_of(survey, node.decorator, AUTOCAST):
            edits.remove(node)
    draft.apply(edits)
    drop_unused_imports(draft, {*AUTOCAST, *SCALER, "torch.cuda.amp", "torch.amp"})


def _is_call_of(survey: Survey, node: cst.CSTNode, names: frozenset[str]) -> bool:
    return isinstance(node, cst.Call) and survey.callee(node) in names


def _drop_use(draft: Draft, edits: Edits, call: cst.Call) -> None:
    survey = draft.survey
    method = cst.ensure_type(call.func, cst.Attribute).attr.value
    if method == "scale" and call.args:
        edits.replace(call, call.args[0].value)
    elif method == "step" and call.args:
        edits.replace(call, expression(f"{text_of(call.args[0].value)}.step()"))
    elif method in ("update", "unscale_", "load_state_dict") and isinstance(survey.parent(call), cst.Expr):
        statement = survey.statement(call)
        if statement is not None:
            edits.remove(statement)
    elif method == "state_dict":
        edits.replace(call, expression("{}"))
    else:
        draft.add_todo(f"`{draft.excerpt(call)}` uses the gradient scaler, which was removed: remove this call too.")


def _drop_arguments(draft: Draft, edits: Edits, places: set[Place]) -> None:
    """Remove the scaler from the parameters of functions and from the arguments of their calls."""
    survey = draft.survey
    for node in survey.nodes:
        function = survey.function(node)
        if isinstance(node, cst.FunctionDef):
            names = names_of(survey, places, node)
            params = node.params
            parameters = [p for p in params.params if p.name.value not in names]
            if len(parameters) != len(params.params):
                if parameters:
                    parameters[-1] = parameters[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                edits.replace(params, params.with_changes(params=parameters))
        elif isinstance(node, cst.Call):
            names = names_of(survey, places, function)
            arguments = [arg for arg in node.args if dotted(arg.value) not in names]
            callee = dotted(node.func) or ""
            local = survey.named(callee.rpartition(".")[2]) or survey.classes_named(callee)
            if len(arguments) != len(node.args) and local:
                if arguments:
                    arguments[-1] = arguments[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                edits.change(node, _with_arguments(arguments))
        elif isinstance(node, cst.Assign) and dotted(node.value) in names_of(survey, places, function):
            statement = survey.statement(node)
            if statement is not None:
                edits.remove(statement)


def _with_arguments(args: list[cst.Arg]) -> Callable[[cst.Call], cst.Call]:
    return lambda call: call.with_changes(args=args)


def _drop_autocast(draft: Draft, edits: Edits, block: cst.With) -> None:
    survey = draft.survey
    items = [
        item
        for item in block.items
        if not (isinstance(item.item, cst.Call) and survey.callee(item.item) in AUTOCAST)
        and not (isinstance(item.item, cst.Name) and _is_autocast(survey, block, item.item.value))
    ]
    if len(items) == len(block.items):
        return
    if items:
        items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        edits.change(block, lambda new: new.with_changes(items=items))
        return

    def unwrap(new: cst.With) -> Any:
        body = list(new.body.body)
        if body and isinstance(body[0], cst.SimpleStatementLine | cst.BaseCompoundStatement):
            body[0] = body[0].with_changes(leading_lines=[*new.leading_lines, *body[0].leading_lines])
        return cst.FlattenSentinel(body)

    edits.change(block, unwrap)


def _is_autocast(survey: Survey, block: cst.With, name: str) -> bool:
    assignments = survey.assignments(survey.function(block), name) or survey.assignments(None, name)
    return bool(assignments) and all(
        isinstance(a.value, cst.Call) and survey.callee(a.value) in AUTOCAST for a in assignments
    )
