"""Which names of a script mean the same object: by parameters, returns, attributes of ``self`` and plain copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted
from smp_advisor.scripts.adapt.survey import Function, Survey, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Place", "call_arguments", "callees", "names_of", "source_of", "spread"]

_SAME = frozenset({"to", "cuda", "half", "float", "train", "eval"})
_WRAPPERS = frozenset(
    {
        "DistributedDataParallel",
        "DataParallel",
        "FullyShardedDataParallel",
        "DistributedModel",
        "compile",
        "DistributedOptimizer",
        "offload_wrapper",
        "transform",
    }
)

Place = tuple[Function, str]
"""A function (None: the module) and a name or attribute in it."""


def callees(survey: Survey, call: cst.Call) -> list[tuple[cst.FunctionDef, int]]:
    """Functions of the script that a call may run, with the number of parameters the call does not give (``self``)."""
    name = dotted(call.func)
    if name is None:
        return []
    last = name.rpartition(".")[2]
    found: list[tuple[cst.FunctionDef, int]] = []
    for definition in survey.classes_named(last) if name == last else ():
        found += [(function, 1) for function in survey.named("__init__") if survey.class_of(function) is definition]
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
        found.append((function, 1 if is_method else 0))
    return found


def call_arguments(survey: Survey, call: cst.Call, function: cst.FunctionDef, skipped: int) -> dict[str, cst.Arg]:
    """Argument of the call for each parameter of the function, where both are plain."""
    parameters = survey.parameters(function)[skipped:]
    found: dict[str, cst.Arg] = {}
    for number, arg in enumerate(call.args):
        if arg.star:
            break
        if arg.keyword is not None:
            if arg.keyword.value in parameters:
                found[arg.keyword.value] = arg
        elif number < len(parameters):
            found[parameters[number]] = arg
    return found


def spread(survey: Survey, start: Place) -> set[Place]:
    """Every place where the object at `start` is known under some name."""
    links = _links(survey)
    found, todo = {_home(survey, start)}, [_home(survey, start)]
    while todo:
        for other in links.get(todo.pop(), ()):
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def names_of(survey: Survey, places: set[Place], function: Function) -> set[str]:
    """Spellings in this function of the object that has these places."""
    found = {name for place, name in places if place is function}
    for place, name in places:
        if _home(survey, (function, name)) == (place, name):
            found.add(name)
        if place is None and not survey.is_bound(function, name):
            found.add(name)
        owner = survey.class_of(place)
        if name.startswith("self.") and owner is not None:
            if owner is _class_around(survey, function):
                found.add(name)
            # trainer.model, where trainer = Trainer(...)
            instances = _instances(survey, function)
            found.update(variable + name[len("self") :] for variable, made in instances.items() if made is owner)
    return found


def _class_around(survey: Survey, function: Function) -> cst.ClassDef | None:
    """Class that ``self`` is of: in a method, and in a function inside of one."""
    while function is not None:
        owner = survey.class_of(function)
        if owner is not None:
            return owner
        function = survey.function(function)
    return None


def _instances(survey: Survey, function: Function) -> dict[str, cst.ClassDef]:
    """Variables of a function that hold an object of a class of the script."""
    made: dict[Function, dict[str, cst.ClassDef]] = survey.memory.setdefault("instances", {})
    if not made:
        made[None] = {}
        for node in survey.nodes:
            value = node.value if isinstance(node, cst.Assign | cst.AnnAssign) else None
            if isinstance(value, cst.Call):
                for definition in survey.classes_named(dotted(value.func) or ""):
                    for target in targets_of(node):
                        made.setdefault(survey.function(node), {})[dotted(target) or ""] = definition
    return made.get(function, {})


def _home(survey: Survey, place: Place) -> Place:
    """The place itself, or the module where the name is a global one, or the first method for ``self.x``."""
    function, name = place
    if name.startswith("self.") and function is not None:
        owner = _class_around(survey, function)
        if owner is not None:
            methods = [method for method in survey.functions if survey.class_of(method) is owner]
            return (methods[0], name)
    while function is not None and not survey.is_bound(function, name.partition(".")[0]):
        # A function inside of another sees its names.
        function = survey.function(function)
    variable, _, attribute = name.partition(".")
    owner = _instances(survey, function).get(variable) if attribute else None
    if owner is not None:
        method = next((method for method in survey.functions if survey.class_of(method) is owner), None)
        if method is not None:
            return (method, f"self.{attribute}")
    return (function, name)


def _links(survey: Survey) -> dict[Place, set[Place]]:
    cached: dict[Place, set[Place]] | None = survey.memory.get("links")
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
    survey.memory["links"] = links
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
            other = dotted(element.value)
            if name is not None and other is not None:
                join((here, name), (here, other))
    elif isinstance(value, cst.Call):
        for function, _ in callees(survey, value):
            for returned in _returned(survey, function):
                given, one = _element_names(returned)
                if one == single and len(given) == len(names):
                    for name, inner in zip(names, given, strict=True):
                        if name is not None and inner is not None:
                            join((here, name), (function, inner))


def source_of(survey: Survey, value: cst.BaseExpression) -> str | None:
    """``model`` in ``model.to(device)`` and ``DistributedDataParallel(model)``: the same object to the script."""
    while isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute) and value.func.attr.value in _SAME:
            value = value.func.value
        elif survey.callee(value).rpartition(".")[2] in _WRAPPERS and value.args:
            value = value.args[0].value
        else:
            return None
    return dotted(value)


def _returned(survey: Survey, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    return [
        node.value
        for node in survey.nodes
        if isinstance(node, cst.Return) and node.value is not None and survey.function(node) is function
    ]


def _element_names(node: cst.BaseExpression) -> tuple[list[str | None], bool]:
    """Names of a target or value, and whether it is a single one rather than a tuple."""
    if isinstance(node, cst.Tuple):
        return [dotted(element.value) for element in node.elements], False
    return [dotted(node)], True
