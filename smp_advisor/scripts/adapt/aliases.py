"""Aliases: names that refer to the same object, by parameters, return values, attributes and assignments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted
from smp_advisor.scripts.adapt.survey import Function, Survey, known_names, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable


_RETURNS_SELF = known_names("methods_that_return_self")
_WRAPPERS = known_names("wrappers_of_the_same_object")

Place = tuple[Function, str]
"""A function (None: the module) and a name or attribute in it."""


def callees(survey: Survey, call: cst.Call) -> list[tuple[cst.FunctionDef, int]]:
    """Functions of the script that a call may run, each with its number of implicit arguments (``self``)."""
    name = dotted(call.func)
    if name is None:
        return []
    last = name.rpartition(".")[2]
    matches: list[tuple[cst.FunctionDef, int]] = []
    for definition in survey.classes_named(last) if name == last else ():
        matches += [(function, 1) for function in survey.named("__init__") if survey.class_of(function) is definition]
    for function in survey.named(last):
        is_method = survey.class_of(function) is not None
        if is_method != (name != last):
            continue
        if (
            is_method
            and name != f"self.{last}"
            and survey.qualified(call.func).split(".")[0] in survey.imported.values()
        ):
            continue
        matches.append((function, 1 if is_method else 0))
    return matches


def call_arguments(survey: Survey, call: cst.Call, function: cst.FunctionDef, skipped: int) -> dict[str, cst.Arg]:
    """Argument of the call for each parameter of the function, up to the first ``*`` or ``**`` argument."""
    parameters = survey.parameters(function)[skipped:]
    arguments: dict[str, cst.Arg] = {}
    for number, arg in enumerate(call.args):
        if arg.star:
            break
        if arg.keyword is not None:
            if arg.keyword.value in parameters:
                arguments[arg.keyword.value] = arg
        elif number < len(parameters):
            arguments[parameters[number]] = arg
    return arguments


def aliases_of(survey: Survey, start: Place) -> set[Place]:
    """Every place that refers to the object at `start`."""
    links = _links(survey)
    places, todo = {_home(survey, start)}, [_home(survey, start)]
    while todo:
        for place in links.get(todo.pop(), ()):
            if place not in places:
                places.add(place)
                todo.append(place)
    return places


def names_of(survey: Survey, places: set[Place], function: Function) -> set[str]:
    """Expressions in this function that refer to the object at these places."""
    names = {name for place, name in places if place is function}
    for place, name in places:
        if _home(survey, (function, name)) == (place, name):
            names.add(name)
        if place is None and not survey.is_bound(function, name):
            names.add(name)
        owner = survey.class_of(place)
        if name.startswith("self.") and owner is not None:
            if owner is _class_around(survey, function):
                names.add(name)
            # trainer.model, where trainer = Trainer(...)
            instances = _instances(survey, function)
            names.update(
                variable + name[len("self") :] for variable, definition in instances.items() if definition is owner
            )
    return names


def _class_around(survey: Survey, function: Function) -> cst.ClassDef | None:
    """Class of ``self`` in a method, or in a function nested in a method."""
    while function is not None:
        owner = survey.class_of(function)
        if owner is not None:
            return owner
        function = survey.function(function)
    return None


def _instances(survey: Survey, function: Function) -> dict[str, cst.ClassDef]:
    """Variables of a function that are instances of a class defined in the script."""
    instances: dict[Function, dict[str, cst.ClassDef]] = survey.cache.setdefault("instances", {})
    if not instances:
        instances[None] = {}
        for node in survey.nodes:
            value = node.value if isinstance(node, cst.Assign | cst.AnnAssign) else None
            if isinstance(value, cst.Call):
                for definition in survey.classes_named(dotted(value.func) or ""):
                    for target in targets_of(node):
                        instances.setdefault(survey.function(node), {})[dotted(target) or ""] = definition
    return instances.get(function, {})


def _home(survey: Survey, place: Place) -> Place:
    """Canonical place of a name: the module for a global name, the first method of the class for ``self.x``."""
    function, name = place
    if name.startswith("self.") and function is not None:
        owner = _class_around(survey, function)
        if owner is not None:
            methods = [method for method in survey.functions if survey.class_of(method) is owner]
            return (methods[0], name)
    while function is not None and not survey.is_bound(function, name.partition(".")[0]):
        # A nested function sees the names of the function around it.
        function = survey.function(function)
    variable, _, attribute = name.partition(".")
    owner = _instances(survey, function).get(variable) if attribute else None
    if owner is not None:
        method = next((method for method in survey.functions if survey.class_of(method) is owner), None)
        if method is not None:
            return (method, f"self.{attribute}")
    return (function, name)


def _links(survey: Survey) -> dict[Place, set[Place]]:
    cached: dict[Place, set[Place]] | None = survey.cache.get("links")
    if cached is not None:
        return cached
    links: dict[Place, set[Place]] = {}

    def join(first: Place, second: Place) -> None:
        first, second = _home(survey, first), _home(survey, second)
        links.setdefault(first, set()).add(second)
        links.setdefault(second, set()).add(first)

    for call in survey.calls:
        here = survey.function(call)
        for function, skipped in callees(survey, call):
            for parameter, arg in call_arguments(survey, call, function, skipped).items():
                name = dotted(arg.value)
                if name is not None:
                    join((here, name), (function, parameter))
    for node in survey.nodes:
        if not isinstance(node, cst.Assign | cst.AnnAssign) or node.value is None:
            continue
        here = survey.function(node)
        for target in targets_of(node):
            _join_values(survey, here, target, node.value, join)
    survey.cache["links"] = links
    return links


def _join_values(  # noqa: C901 - a list of cases
    survey: Survey,
    here: Function,
    target: cst.BaseExpression,
    value: cst.BaseExpression,
    join: Callable[[Place, Place], None],
) -> None:
    names, single = _element_names(target)
    source = source_of(survey, value)
    if single and source is not None and names[0] is not None:
        join((here, names[0]), (here, source))
    elif not single and isinstance(value, cst.Tuple) and len(value.elements) == len(names):
        for name, element in zip(names, value.elements, strict=True):
            source_name = dotted(element.value)
            if name is not None and source_name is not None:
                join((here, name), (here, source_name))
    elif isinstance(value, cst.Call):
        for function, _ in callees(survey, value):
            for returned in _returned(survey, function):
                inner_names, inner_single = _element_names(returned)
                if inner_single == single and len(inner_names) == len(names):
                    for name, inner in zip(names, inner_names, strict=True):
                        if name is not None and inner is not None:
                            join((here, name), (function, inner))


def source_of(survey: Survey, value: cst.BaseExpression) -> str | None:
    """``model`` for ``model.to(device)`` and ``DistributedDataParallel(model)``, which refer to the same object."""
    while isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute) and value.func.attr.value in _RETURNS_SELF:
            value = value.func.value
        elif survey.callee(value).rpartition(".")[2] in _WRAPPERS and value.args:
            value = value.args[0].value
        else:
            return None
    if isinstance(value, cst.IfExp):  # model.module if ddp else model
        either = {(source_of(survey, part) or "").removesuffix(".module") for part in (value.body, value.orelse)}
        return either.pop() or None if len(either) == 1 else None
    name = dotted(value)
    # Two attributes that are both None at first are not the same object.
    return None if name in ("None", "True", "False") else name


def _returned(survey: Survey, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    return [
        node.value
        for node in survey.nodes
        if isinstance(node, cst.Return) and node.value is not None and survey.function(node) is function
    ]


def _element_names(node: cst.BaseExpression) -> tuple[list[str | None], bool]:
    """Names in a target or value, and whether it is a single name rather than a tuple."""
    if isinstance(node, cst.Tuple):
        return [dotted(element.value) for element in node.elements], False
    return [dotted(node)], True
