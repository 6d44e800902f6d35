"""Wrappers of other training methods, which leave the model, and attributes that a wrapper does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import drop_unused_imports
from smp_advisor.scripts.adapt.aliases import aliases_of, names_of, source_of
from smp_advisor.scripts.adapt.code import Edits, dotted, expression, text_of, walk
from smp_advisor.scripts.adapt.roles import backward_calls, model_places, root_name
from smp_advisor.scripts.adapt.survey import known_names, targets_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.construction import Construction
    from smp_advisor.scripts.adapt.survey import Statement, Survey


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
    _choose_model(draft)
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


def _choose_model(draft: Draft) -> None:
    """Replace ``model.module if ddp else model`` by ``model``."""
    survey, edits = draft.survey, Edits()
    places = model_places(survey)
    for node in survey.nodes:
        source = source_of(survey, node) if isinstance(node, cst.IfExp) and ".module" in text_of(node) else None
        if source is not None and source in names_of(survey, places, survey.function(node)):
            edits.replace(node, expression(source))
    draft.apply(edits)


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


_MODULE = frozenset(known_names("module_attributes"))
_WITHOUT_LAYERS = frozenset(known_names("methods_without_layers"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A use of an attribute of the model after it is wrapped."""

    node: cst.Attribute
    attribute: str
    name: str
    """Source: ``model.encode``."""
    is_method: bool
    """Whether it is a method rather than a layer."""
    runs_layers: bool
    """Whether it is called and computes with the parameters of the model."""
    trains: bool
    """Whether it is in the innermost loop around a backward pass."""
    inner: bool
    """Whether the name stays that of the model inside the wrapper: ``m`` of ``m = model.to(device)``."""


def uses_of_model(draft: Draft, construction: Construction, *, start: Statement | None = None) -> list[Use]:
    """Uses of attributes that belong to the model and not to ``torch.nn.Module``, after the model is wrapped.

    `start` is the last statement before the wrapper; None if the wrapper precedes the first use of the parameters.
    """
    survey = draft.survey
    places = aliases_of(survey, (construction.function, construction.name))
    start = start or construction.use or construction.last
    classes = _classes(survey, construction)
    training = {survey.loops(call)[0] for call in backward_calls(survey) if survey.loops(call)}
    assigned = [
        (dotted(target), survey.follows(start, node))
        for node in survey.nodes
        if isinstance(node, cst.Assign | cst.AnnAssign) and survey.function(node) is construction.function
        for target in targets_of(node)
    ]
    others = {name for name, after in assigned if not after} - {name for name, after in assigned if after}
    others.discard(construction.name)
    uses = []
    for node in survey.nodes:
        if not isinstance(node, cst.Attribute) or node.attr.value in _MODULE:
            continue
        function = survey.function(node)
        name = dotted(node.value)
        if name is None or name not in names_of(survey, places, function):
            continue
        if (
            function is construction.function
            and not survey.follows(start, node)
            and start not in survey.ancestors(node)
        ):
            continue
        if any(survey.class_of(function) is definition for definition in classes):
            continue
        parent = survey.parent(node)
        called = isinstance(parent, cst.Call) and parent.func is node
        methods = [f for f in survey.named(node.attr.value) if survey.class_of(f) in classes]
        uses.append(
            Use(
                node=node,
                attribute=node.attr.value,
                name=f"{name}.{node.attr.value}",
                is_method=bool(methods) or not _is_layer(classes, node.attr.value),
                runs_layers=called and _runs_layers(methods, classes, node.attr.value),
                inner=name in others and (function is construction.function or not survey.is_bound(function, name)),
                trains=any(loop in training for loop in survey.loops(node)) and not _is_periodic(survey, node),
            )
        )
    return uses


def _is_periodic(survey: Survey, node: cst.CSTNode) -> bool:
    """Whether a statement runs every n-th iteration only, such as the generation of a sample."""
    for above in survey.ancestors(node):
        if isinstance(above, cst.For | cst.While | cst.FunctionDef):
            return False
        if isinstance(above, cst.If) and any(isinstance(inner, cst.Modulo) for inner in walk(above.test)):
            return not any(call in walk(above) for call in backward_calls(survey))
    return False


def _classes(survey: Survey, construction: Construction) -> list[cst.ClassDef]:
    called = {dotted(node.func) or "" for node in walk(construction.statement) if isinstance(node, cst.Call)}
    return [definition for name in called for definition in survey.classes_named(name)]


def _is_layer(classes: list[cst.ClassDef], attribute: str) -> bool:
    return any(
        dotted(target) == f"self.{attribute}"
        for definition in classes
        for node in walk(definition)
        if isinstance(node, cst.Assign | cst.AnnAssign)
        for target in targets_of(node)
    )


def _runs_layers(methods: list[cst.FunctionDef], classes: list[cst.ClassDef], attribute: str) -> bool:
    """Whether a method calls layers or other methods of the model; a method that is not in the script may."""
    if attribute in _WITHOUT_LAYERS or attribute.startswith(("get_", "set_", "init_", "num_", "print_", "load_")):
        return False
    if not classes:
        return True
    if not methods:
        return _is_layer(classes, attribute) or not classes
    return any(
        isinstance(node, cst.Call) and text_of(node.func).startswith("self")
        for method in methods
        for node in walk(method)
    )
