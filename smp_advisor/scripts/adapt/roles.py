"""The model, the optimizers, the loaders and the backward passes of a script, by their use, and their other names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar, cast

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, keyword, names_in, positional, text_of, walk
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
    return names


def _class_around(survey: Survey, function: Function) -> cst.ClassDef | None:
    """Class of ``self`` in a method, or in a function nested in a method."""
    while function is not None:
        owner = survey.class_of(function)
        if owner is not None:
            return owner
        function = survey.function(function)
    return None


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


T = TypeVar("T")

_OPTIMIZERS = known_names("optimizers_outside_torch")
_SCHEDULES = "torch.optim.lr_scheduler"


def _cached(find: Callable[[Survey], T]) -> Callable[[Survey], T]:
    """Compute the result once per survey."""

    @wraps(find)
    def cached(survey: Survey) -> T:
        if find.__name__ not in survey.cache:
            survey.cache[find.__name__] = find(survey)
        return cast("T", survey.cache[find.__name__])

    return cached


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """A call that creates an optimizer."""

    call: cst.Call
    function: Function
    name: str | None
    """Variable or attribute to which it is assigned; None if it is returned or passed as an argument."""
    model: Place | None
    """Model whose parameters it updates."""


@_cached
def optimizers(survey: Survey) -> list[Optimizer]:
    """All optimizers that the script creates, in source order."""
    results = []
    own = _methods_with_optimizer(survey)
    for call in survey.calls:
        function = survey.function(call)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        owner = dotted(call.func.value) if isinstance(call.func, cst.Attribute) else None
        if method in own and owner not in (None, "self", "super"):
            # optimizer = model.configure_optimizers(...)
            model: Place | None = (function, root_name(owner or ""))
        elif not _creates_optimizer(survey, call) or (function is not None and function.name.value in own):
            continue
        else:
            model = _model_of(survey, call, function)
        parent = survey.parent(call)
        name = None
        if isinstance(parent, cst.Assign | cst.AnnAssign):
            name = next((dotted(target) for target in targets_of(parent)), None)
        results.append(Optimizer(call=call, function=function, name=name, model=model))
    return results


def _methods_with_optimizer(survey: Survey) -> set[str]:
    """Methods of models that create the optimizer of their own parameters, by name."""
    names = {"configure_optimizers"}
    for call in survey.calls:
        function = survey.function(call)
        if function is None or survey.class_of(function) is None or not _creates_optimizer(survey, call):
            continue
        if _model_of(survey, call, function) == (function, "self"):
            names.add(function.name.value)
    return names


def _creates_optimizer(survey: Survey, call: cst.Call) -> bool:
    name = survey.callee(call)
    if not name or name.startswith(_SCHEDULES) or not (call.args):
        return False
    if name.startswith("torch.optim."):
        return name.rpartition(".")[2][:1].isupper()
    last = name.rpartition(".")[2]
    if last in _OPTIMIZERS and not survey.classes_named(last):
        return True
    return (
        last[:1].isupper() and _parameters_of(call) is not None and "Distributed" not in last and "Parallel" not in last
    )


def _parameters_of(node: cst.CSTNode) -> str | None:
    """``model`` in the first ``model.parameters()`` or ``model.named_parameters()``."""
    for inner in walk(node):
        if (
            isinstance(inner, cst.Call)
            and isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value in ("parameters", "named_parameters")
        ):
            name = dotted(inner.func.value)
            if name is not None:
                return root_name(name)
    return None


def root_name(name: str) -> str:
    """``model`` for ``model.backbone``, ``self.model`` for ``self.model.head``."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "self" else parts[0]


def _model_of(survey: Survey, call: cst.Call, function: Function) -> Place | None:
    name = _parameters_of(call)
    if name is not None:
        return (function, name)
    parameters = keyword(call, "params") or positional(call, 0)
    if parameters is None:
        return None
    for variable in names_in(parameters.value):
        for assignment in reversed(survey.assignments(function, variable)):
            name = _parameters_of(assignment)
            if name is None and isinstance(assignment.value, cst.Call):
                # params = parameter_groups(model, ...)
                name = next((dotted(arg.value) for arg in assignment.value.args if dotted(arg.value)), None)
            if name is not None:
                return (function, name)
    if isinstance(parameters.value, cst.Call):
        name = next((dotted(arg.value) for arg in parameters.value.args if dotted(arg.value)), None)
        if name is not None:
            return (function, name)
    return None


@_cached
def model_places(survey: Survey) -> set[Place]:
    """All places that refer to a model whose parameters an optimizer updates."""
    places: set[Place] = set()
    for optimizer in optimizers(survey):
        if optimizer.model is not None:
            places |= aliases_of(survey, optimizer.model)
    return places


@_cached
def optimizer_places(survey: Survey) -> set[Place]:
    """All places that refer to an optimizer."""
    places: set[Place] = set()
    for optimizer in optimizers(survey):
        if optimizer.name is not None:
            places |= aliases_of(survey, (optimizer.function, optimizer.name))
    for function in survey.functions:
        # An optimizer returned by a helper gets its name where the helper is called.
        if not any(
            o.name is None and o.function is function and _is_returned(survey, o.call) for o in optimizers(survey)
        ):
            continue
        for call in survey.calls:
            parent = survey.parent(call)
            if dotted(call.func) in (function.name.value, f"self.{function.name.value}") and isinstance(
                parent, cst.Assign
            ):
                for target in targets_of(parent):
                    if dotted(target) is not None:
                        places |= aliases_of(survey, (survey.function(call), str(dotted(target))))
    return places


def _is_returned(survey: Survey, call: cst.Call) -> bool:
    for above in survey.ancestors(call):
        if isinstance(above, cst.Return):
            return True
        if not isinstance(above, cst.Arg | cst.Call):
            return False
    return False


def backward_calls(survey: Survey) -> list[cst.Call]:
    """Calls such as ``loss.backward()``, without calls of ``backward`` on the model."""
    models = model_places(survey)
    calls = []
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "backward":
            continue
        owner = dotted(call.func.value)
        if owner is not None and owner in names_of(survey, models, survey.function(call)):
            continue
        if survey.qualified(call.func.value).split(".")[0] == "torch" or (
            call.args and owner in ("accelerator", "fabric")
        ):
            continue
        calls.append(call)
    return calls


def loader_calls(survey: Survey) -> list[cst.Call]:
    """Calls that create a ``torch.utils.data.DataLoader``."""
    return [call for call in survey.calls if survey.callee(call) in known_names("data_loaders")]


_HELD_OUT = ("val", "eval", "test", "dev")


def assigned_name(survey: Survey, call: cst.Call) -> str | None:
    """Variable or key to which the loader is assigned."""
    parent = survey.parent(call)
    if isinstance(parent, cst.Assign | cst.AnnAssign):
        return next((dotted(target) for target in targets_of(parent)), None)
    if isinstance(parent, cst.DictElement):
        return text_of(parent.key)
    return None


def is_held_out(survey: Survey, call: cst.Call) -> bool:
    """Whether a loader only feeds evaluation: no loop over it has a backward pass, or only its name is known."""
    loops = loops_over(survey, call)
    if loops:
        training = set(backward_calls(survey))
        return not any(reaches(survey, loop, training, 4) for loop in loops)
    return any(word in (assigned_name(survey, call) or "").lower() for word in _HELD_OUT)


def loops_over(survey: Survey, call: cst.Call) -> list[cst.For]:
    """Loops over the batches of a loader."""
    places = places_of_loader(survey, call)
    loops = []
    for loop in survey.nodes:
        if isinstance(loop, cst.For):
            names = names_of(survey, places, survey.function(loop))
            if call in walk(loop.iter) or any(name in names for name in iterated(loop.iter)):
                loops.append(loop)
    return loops


def reaches(survey: Survey, node: cst.CSTNode, calls: set[cst.Call], depth: int) -> bool:
    """Whether a statement makes one of the calls, also through functions of the script."""
    for inner in walk(node):
        if inner in calls:
            return True
        if depth and isinstance(inner, cst.Call):
            for function, _ in callees(survey, inner):
                if function is not node and reaches(survey, function.body, calls, depth - 1):
                    return True
    return False


def places_of_loader(survey: Survey, call: cst.Call) -> set[Place]:
    """Variables that refer to the loader that a call creates, also as the result of a function of the script."""
    parent, function = survey.parent(call), survey.function(call)
    name = assigned_name(survey, call) if isinstance(parent, cst.Assign | cst.AnnAssign) else None
    places = aliases_of(survey, (function, name)) if name is not None else set()
    if isinstance(parent, cst.Return) and function is not None:
        for site in survey.calls:
            above = survey.parent(site)
            if dotted(site.func) == function.name.value and isinstance(above, cst.Assign):
                for target in targets_of(above):
                    if dotted(target) is not None:
                        places |= aliases_of(survey, (survey.function(site), str(dotted(target))))
    return places


def iterated(node: cst.CSTNode) -> list[str]:
    """Names over which a ``for`` loop may iterate, directly or through calls such as enumerate and tqdm."""
    name = dotted(node)
    if name is not None:
        return [name]
    if isinstance(node, cst.Call):
        return [name for arg in node.args for name in iterated(arg.value)]
    return []
