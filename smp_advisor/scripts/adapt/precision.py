"""Step: PyTorch's mixed precision leaves the loop where the library or FSDP does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, names_of, spread
from smp_advisor.scripts.adapt.code import dotted, expression, spelled
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import drop_unused_imports
from smp_advisor.scripts.adapt.survey import Survey, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["AUTOCAST", "SCALER", "remove_mixed_precision", "scalers"]

AUTOCAST = frozenset(
    {"torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"}
)
SCALER = frozenset({"torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler"})


def scalers(survey: Survey) -> list[cst.Call]:
    """Calls that make a gradient scaler of PyTorch."""
    return [call for call in survey.calls if survey.callee(call) in SCALER]


def remove_mixed_precision(draft: Draft) -> None:  # noqa: C901 - a list of cases
    """Drop ``autocast`` and the gradient scaler: their blocks and arguments stay."""
    survey, edits = draft.survey, Edits()
    names: set[tuple[object, str]] = set()
    places = set()
    for call in scalers(survey):
        parent = survey.parent(call)
        if isinstance(parent, cst.Assign | cst.AnnAssign):
            statement = survey.statement(call)
            for target in targets_of(parent):
                name = dotted(target)
                if name is not None:
                    places |= spread(survey, (survey.function(call), name))
            if statement is not None:
                edits.remove(statement)
        else:
            draft.leave_to_do(f"`{draft.at(call)}`: take the gradient scaler out, the loss is scaled elsewhere.")
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute):
            continue
        owner = dotted(call.func.value)
        if owner is None or owner not in names_of(survey, places, survey.function(call)):
            continue
        _drop_use(draft, edits, call)
        names.add((survey.function(call), owner))
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
        edits.replace(call, expression(f"{spelled(call.args[0].value)}.step()"))
    elif (method in ("update", "unscale_") and isinstance(survey.parent(call), cst.Expr)) or (
        method == "load_state_dict" and isinstance(survey.parent(call), cst.Expr)
    ):
        statement = survey.statement(call)
        if statement is not None:
            edits.remove(statement)
    elif method == "state_dict":
        edits.replace(call, expression("{}"))
    else:
        draft.leave_to_do(f"`{draft.at(call)}` uses the gradient scaler, which is gone: take it out.")


def _drop_arguments(draft: Draft, edits: Edits, places: set[Place]) -> None:
    """The scaler as a parameter of the script's functions, and as an argument of their calls."""
    survey = draft.survey
    for node in survey.nodes:
        function = survey.function(node)
        if isinstance(node, cst.FunctionDef):
            names = names_of(survey, places, node)
            params = node.params
            kept = [p for p in params.params if p.name.value not in names]
            if len(kept) != len(params.params):
                if kept:
                    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                edits.replace(params, params.with_changes(params=kept))
        elif isinstance(node, cst.Call):
            names = names_of(survey, places, function)
            kept_args = [arg for arg in node.args if dotted(arg.value) not in names or dotted(arg.value) is None]
            local = dotted(node.func) is not None and (
                survey.named(dotted(node.func).rpartition(".")[2]) or survey.classes_named(dotted(node.func))  # type: ignore[union-attr,arg-type]
            )
            if len(kept_args) != len(node.args) and local:
                if kept_args:
                    kept_args[-1] = kept_args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                edits.change(node, _with_arguments(kept_args))
        elif isinstance(node, cst.Assign) and dotted(node.value) in names_of(survey, places, function):
            statement = survey.statement(node)
            if statement is not None:
                edits.remove(statement)


def _with_arguments(args: list[cst.Arg]) -> Callable[[cst.Call], cst.Call]:
    return lambda call: call.with_changes(args=args)


def _drop_autocast(draft: Draft, edits: Edits, block: cst.With) -> None:
    survey = draft.survey
    kept = [
        item
        for item in block.items
        if not (isinstance(item.item, cst.Call) and survey.callee(item.item) in AUTOCAST)
        and not (isinstance(item.item, cst.Name) and _is_autocast(survey, block, item.item.value))
    ]
    if len(kept) == len(block.items):
        return
    if kept:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        edits.change(block, lambda new: new.with_changes(items=kept))
        return

    def unwrap(new: cst.With) -> Any:
        body = list(new.body.body)
        if body and isinstance(body[0], cst.SimpleStatementLine | cst.BaseCompoundStatement):
            body[0] = body[0].with_changes(leading_lines=[*new.leading_lines, *body[0].leading_lines])
        return cst.FlattenSentinel(body)

    edits.change(block, unwrap)


def _is_autocast(survey: Survey, block: cst.With, name: str) -> bool:
    made = survey.assignments(survey.function(block), name) or survey.assignments(None, name)
    return bool(made) and all(isinstance(a.value, cst.Call) and survey.callee(a.value) in AUTOCAST for a in made)
