"""Remove the wrappers and device moves of other training methods from the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of, source_of
from smp_advisor.scripts.adapt.code import dotted, text_of, walk
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import drop_unused_imports
from smp_advisor.scripts.adapt.known_names import known_names
from smp_advisor.scripts.adapt.roles import model_places, root_name
from smp_advisor.scripts.adapt.survey import targets_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["REPLICATING", "SHARDING", "take_out_wrappers", "unwrap", "without_moves"]

REPLICATING = frozenset(known_names("data_parallel_wrappers"))
SHARDING = frozenset(known_names("fsdp_wrappers"))
_MOVES = ("to", "cuda")


def take_out_wrappers(draft: Draft, wrappers: Iterable[str]) -> None:
    """Remove `wrappers` and ``.to(device)`` from the model: the library moves each part to its GPU."""
    unwrap(draft, wrappers)
    survey, edits = draft.survey, Edits()
    places = model_places(survey)
    for node in survey.nodes:
        if isinstance(node, cst.Assign | cst.AnnAssign) and node.value is not None:
            _strip_assignment(survey, edits, node, names_of(survey, places, survey.function(node)))
        elif isinstance(node, cst.SimpleStatementLine):
            _strip_call(edits, node, names_of(survey, places, survey.function(node)))
    draft.apply(edits)


def unwrap(draft: Draft, wrappers: Iterable[str], *, attribute: bool = False) -> None:
    """Replace ``DataParallel(model)`` by ``model``, and ``model.module`` too if `attribute`."""
    wrappers = frozenset(wrappers)
    survey, edits = draft.survey, Edits()
    places = model_places(survey)
    for call in survey.calls:
        if survey.callee(call) not in wrappers or not call.args:
            continue
        inner = dotted(call.args[0].value)
        names = names_of(survey, places, survey.function(call))
        if inner is None or root_name(inner) in names or inner in names:
            parent, statement = survey.parent(call), survey.statement(call)
            same = isinstance(parent, cst.Assign) and [dotted(t) for t in targets_of(parent)] == [inner]
            if same and statement is not None:
                edits.remove(statement)
            else:
                edits.replace(call, call.args[0].value)
    if edits and attribute:
        for node in survey.nodes:
            if not isinstance(node, cst.Attribute) or node.attr.value != "module":
                continue
            if dotted(node.value) in names_of(survey, places, survey.function(node)):
                edits.replace(node, node.value)
    draft.apply(edits)
    drop_unused_imports(draft, set(wrappers))


def _strip_assignment(survey: Survey, edits: Edits, node: cst.Assign | cst.AnnAssign, names: set[str]) -> None:
    targets = [dotted(target) for target in targets_of(node)]
    if node.value is None or len(targets) != 1 or targets[0] is None or root_name(targets[0]) not in names:
        return
    source = source_of(survey, node.value)
    plain = without_moves(node.value)
    statement = survey.statement(node)
    if statement is not None and text_of(plain) == targets[0]:
        edits.remove(statement)
    elif plain is not node.value and (targets[0] in names or source in names):
        edits.replace(node.value, plain)


def without_moves(value: cst.BaseExpression) -> cst.BaseExpression:
    """The value without device moves: ``Net()`` for ``Net().to(device)``."""
    if isinstance(value, cst.IfExp):
        body, orelse = without_moves(value.body), without_moves(value.orelse)
        if text_of(body) == text_of(orelse):
            return body
        return value.with_changes(body=body, orelse=orelse) if (body, orelse) != (value.body, value.orelse) else value
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _MOVES:
        value = value.func.value
    return value


def _strip_call(edits: Edits, statement: cst.SimpleStatementLine, names: set[str]) -> None:
    """Remove ``model.to(device)``; of ``model.to(device).train()``, keep ``model.train()``."""
    small = statement.body[0] if len(statement.body) == 1 else None
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
        return
    for node in walk(small):
        if not isinstance(node, cst.Call):
            continue
        plain = without_moves(node)
        if plain is node or root_name(dotted(plain) or "") not in names:
            continue
        if node is small.value:
            edits.remove(statement)
        else:
            edits.replace(node, plain)
        return
