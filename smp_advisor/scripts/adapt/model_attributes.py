"""Attributes of a model that its wrapper does not have, and methods of the model that run its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import aliases_of, names_of
from smp_advisor.scripts.adapt.code import dotted, text_of, walk
from smp_advisor.scripts.adapt.known_names import known_names
from smp_advisor.scripts.adapt.roles import backward_calls
from smp_advisor.scripts.adapt.survey import targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.construction import Construction
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Statement, Survey

__all__ = ["Use", "uses_of_model"]

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


def uses_of_model(draft: Draft, construction: Construction, *, start: Statement | None = None) -> list[Use]:
    """Uses of attributes that belong to the model and not to ``torch.nn.Module``, after the model is wrapped.

    `start` is the last statement before the wrapper; None if the wrapper precedes the first use of the parameters.
    """
    survey = draft.survey
    places = aliases_of(survey, (construction.function, construction.name))
    start = start or construction.use or construction.last
    classes = _classes(survey, construction)
    training = {survey.loops(call)[0] for call in backward_calls(survey) if survey.loops(call)}
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
