"""The model, the optimizers, the loaders and the backward passes of a script, by the values that its names have."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar, cast

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from smp_advisor.reading.block_names import names_of_block
from smp_advisor.reading.following import follow
from smp_advisor.reading.source import Source
from smp_advisor.reading.trace import Call
from smp_advisor.reading.values import Function as Defined
from smp_advisor.reading.values import Instance, Item, Member, Result, Value, is_none, options, parts_of
from smp_advisor.scripts.adapt.code import dotted, walk
from smp_advisor.scripts.adapt.survey import Function, Survey, known_names, targets_of
from smp_advisor.scripts.checks.data import LOADERS
from smp_advisor.scripts.queries import is_optimizer, origins, ranks, updates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_WRAPPERS = known_names("wrappers_of_the_same_object")
_PARAMETERS = ("parameters", "named_parameters")

Objects = frozenset[int]
"""Identities of the values that an expression may have, without wrappers."""

T = TypeVar("T")


def _cached(find: Callable[[Survey], T]) -> Callable[[Survey], T]:
    """Compute the result once per survey."""

    @wraps(find)
    def cached(survey: Survey) -> T:
        if find.__name__ not in survey.cache:
            survey.cache[find.__name__] = find(survey)
        return cast("T", survey.cache[find.__name__])

    return cached


class _Reading:
    """The values that the reader of scripts finds, by the nodes of LibCST."""

    def __init__(self, module: cst.Module) -> None:
        text = module.code
        self.run = follow(Source("<source>", text), records=True)
        lines = text.split("\n")

        def column(line: int, offset: int) -> int:
            written = lines[line - 1]
            return offset if written.isascii() else len(written.encode()[:offset].decode(errors="ignore"))

        positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
        places: dict[tuple[int, int, int, int], cst.CSTNode] = {}
        for inner, place in positions.items():
            if isinstance(inner, cst.Name | cst.Attribute | cst.Call):
                places[place.start.line, place.start.column, place.end.line, place.end.column] = inner
            elif isinstance(inner, cst.FunctionDef | cst.For):
                places[place.start.line, place.start.column, 0, 0] = inner
        self.nodes: dict[ast.AST, cst.CSTNode] = {}
        self.values: dict[cst.CSTNode, list[Value]] = {}
        for tree in ast.walk(self.run.trace.modules[0].tree):
            if isinstance(tree, ast.Name | ast.Attribute | ast.Call | ast.FunctionDef | ast.For):
                ends = (0, 0)
                if isinstance(tree, ast.expr):
                    end = tree.end_lineno or tree.lineno
                    ends = (end, column(end, tree.end_col_offset or 0))
                node = places.get((tree.lineno, column(tree.lineno, tree.col_offset), *ends))
                if node is not None:
                    self.nodes[tree] = node
                    self.values[node] = (self.run.values or {}).get(cast("ast.expr", tree), [])


@_cached
def _reading(survey: Survey) -> _Reading:
    return _Reading(survey.module)


def node_of(survey: Survey, tree: ast.AST) -> cst.CSTNode | None:
    """The node of LibCST for one that the reader of scripts found."""
    return _reading(survey).nodes.get(tree)


def calls_of(survey: Survey) -> list[Call]:
    """Calls of the script in the order in which they would run."""
    return _reading(survey).run.trace.calls


def _inside(value: Value, depth: int = 0) -> Iterator[Value]:
    """The objects that a value may be, without wrappers and methods that return their object."""
    for option in origins(value):
        inner: Value | None = None
        if isinstance(option, Result) and option.call.called in _WRAPPERS and option.call.arguments:
            inner = option.call.arguments[0]
        elif isinstance(option, Member) and option.name == "module":
            inner = option.owner
        if inner is None or depth > 20:
            yield option
        else:
            yield from _inside(inner, depth + 1)


def _identity(value: Value) -> int:
    if isinstance(value, Instance | Result):
        return id(value.call.node)
    if isinstance(value, Member):
        return hash((_identity(value.owner), value.name))
    if isinstance(value, Item) and value.key is not None:
        return hash((_identity(value.owner), getattr(value.key, "value", None)))
    return id(value)


def _identities(values: list[Value]) -> Objects:
    return frozenset(_identity(option) for value in values for option in _inside(value) if not is_none(option))


def is_bound(survey: Survey, function: Function, name: str) -> bool:
    """Whether the name is local to the function: a parameter, or assigned in it."""
    return function is not None and name in _bound(survey).get(function, ())


@_cached
def _bound(survey: Survey) -> dict[cst.CSTNode, set[str]]:
    bound = {}
    for tree, node in _reading(survey).nodes.items():
        if isinstance(tree, ast.FunctionDef):
            shared = {name for n in ast.walk(tree) if isinstance(n, ast.Global) for name in n.names}
            parameters = {n.arg for n in ast.walk(tree.args) if isinstance(n, ast.arg)}
            bound[node] = (parameters | set(names_of_block(tree.body).bound)) - shared
    return bound


@_cached
def module_names(survey: Survey) -> set[str]:
    """Global names: imports, definitions and assignments at module level."""
    return set(names_of_block(_reading(survey).run.trace.modules[0].tree.body).bound)


def is_on_process(survey: Survey, test: cst.CSTNode) -> bool:
    """Whether the rank of this process is among the values of a condition, whatever their names are."""
    values = _reading(survey).values
    return any(ranks(value) for node in walk(test) for value in values.get(node, ()))


def events_of(survey: Survey, call: cst.Call) -> list[Call]:
    """A call as it would run, once for each way that leads to it."""
    return _events(survey).get(call, [])


@_cached
def _events(survey: Survey) -> dict[cst.CSTNode, list[Call]]:
    reading, events = _reading(survey), dict[cst.CSTNode, list[Call]]()
    for event in reading.run.trace.calls:
        if (node := reading.nodes.get(event.node)) is not None:
            events.setdefault(node, []).append(event)
    return events


def objects_of(survey: Survey, node: cst.CSTNode) -> Objects:
    """The objects that an expression may be."""
    return _identities(_reading(survey).values.get(node, []))


@_cached
def _references(survey: Survey) -> dict[Function, list[tuple[str, Objects]]]:
    """Names and attributes with the objects that they refer to, by function."""
    references: dict[Function, list[tuple[str, Objects]]] = {}
    for node in survey.nodes:
        name = dotted(node) if isinstance(node, cst.Name | cst.Attribute) else None
        if name is not None and (objects := objects_of(survey, node)):
            references.setdefault(survey.function(node), []).append((name, objects))
    return references


def names_of(survey: Survey, objects: Objects, function: Function) -> set[str]:
    """Expressions in this function that refer to one of the objects, and global names that do."""
    references = _references(survey)
    names = {name for name, values in references.get(function, ()) if values & objects}
    names |= {n for n, values in references.get(None, ()) if values & objects and not is_bound(survey, function, n)}
    return {name for name in names if name != "self" and not name.endswith(".module")}


def callees(survey: Survey, call: cst.Call) -> list[cst.FunctionDef]:
    """Functions of the script that a call may run."""
    reading = _reading(survey)
    made = (option for value in reading.values.get(call, ()) for option in options(value))
    starts = [value.cls.find("__init__") for value in made if isinstance(value, Instance)]
    called = [event.function for event in events_of(survey, call)]
    nodes = (reading.nodes.get(f.node) for f in (*called, *starts) if isinstance(f, Defined))
    return list(dict.fromkeys(node for node in nodes if isinstance(node, cst.FunctionDef)))


def root_of(node: cst.CSTNode) -> cst.CSTNode:
    """``model`` in ``model.backbone``, ``self.model`` in ``self.model.head``."""
    while isinstance(node, cst.Attribute) and dotted(node.value) != "self":
        node = node.value
    return node


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """A call that creates an optimizer."""

    call: cst.Call
    function: Function
    name: str | None
    """Variable or attribute to which it is assigned; None if it is returned or passed as an argument."""
    objects: Objects
    models: tuple[Objects, ...]
    """The models whose parameters it updates; empty if they are not known."""
    model_name: str
    """The first of them as the call spells it."""

    @property
    def model(self) -> Objects:
        """All of them."""
        return frozenset[int]().union(*self.models)


@_cached
def optimizers(survey: Survey) -> list[Optimizer]:
    """All optimizers that the script creates, in source order."""
    results = []
    own = {"configure_optimizers"} | {
        function.name.value
        for call in survey.calls
        if (function := survey.function(call)) is not None and survey.class_of(function) is not None
        if _creates_optimizer(survey, call) and any(dotted(node) == "self" for node in _models_of(survey, call))
    }
    for call in survey.calls:
        function = survey.function(call)
        method, owner = (call.func.attr.value, call.func.value) if isinstance(call.func, cst.Attribute) else ("", None)
        if owner is not None and method in own and dotted(owner) not in (None, "self", "super"):
            models = [root_of(owner)]  # optimizer = model.configure_optimizers(...)
        elif not _creates_optimizer(survey, call) or (function is not None and function.name.value in own):
            continue
        else:
            models = _models_of(survey, call)
        parent = survey.parent(call)
        name = next((dotted(target) for target in targets_of(parent or call)), None)
        results.append(
            Optimizer(
                call=call, function=function, name=name, objects=objects_of(survey, call),
                models=tuple(dict.fromkeys(filter(None, (objects_of(survey, node) for node in models)))),
                model_name=next((dotted(node) or "" for node in models), ""),
            )
        )  # fmt: skip
    return results


def _creates_optimizer(survey: Survey, call: cst.Call) -> bool:
    """Whether a call creates an optimizer: by its name, or by parameters that it gets and updates."""
    name = survey.callee(call)
    if not call.args or not name.rpartition(".")[2][:1].isupper():
        return False
    if is_optimizer(name) and not survey.classes_named(name):
        return True
    takes = any(isinstance(n, cst.Attribute) and n.attr.value in _PARAMETERS for n in walk(call))
    return takes and bool(objects_of(survey, call) & _updated(survey))


@_cached
def _updated(survey: Survey) -> Objects:
    return _identities([value for _, value in updates(_reading(survey).run.trace)])


def _models_of(survey: Survey, call: cst.Call) -> list[cst.CSTNode]:
    """The expressions whose ``parameters()`` an optimizer gets, or that a function gets which returns them."""
    reading = _reading(survey)
    argument = next((arg for arg in call.args if arg.keyword is None or arg.keyword.value == "params"), None)
    if argument is None:
        return []
    nodes: list[cst.CSTNode] = [
        root_of(inner.value)
        for inner in walk(argument.value)
        if isinstance(inner, cst.Attribute) and inner.attr.value in _PARAMETERS
    ]
    for event in events_of(survey, call) if not nodes else ():
        for owner in _owners(event.argument("params", 0)):
            place = reading.nodes.get(owner)
            nodes += [root_of(place)] if place is not None else []
    return nodes


def _owners(value: Value | None, depth: int = 0) -> Iterator[ast.expr]:
    """Expressions of the models whose parameters are in a value."""
    for option in options(value) if depth < 8 else ():
        parts = parts_of(option)
        if isinstance(option, Result):
            function = option.call.node.func
            if option.call.method in _PARAMETERS and isinstance(function, ast.Attribute):
                yield function.value
            elif option.call.node.args and not option.call.method:
                yield from (node for node in option.call.node.args if isinstance(node, ast.Name | ast.Attribute))
            parts = option.call.arguments
        for part in parts:
            yield from _owners(part, depth + 1)


@_cached
def model_places(survey: Survey) -> Objects:
    """The models whose parameters an optimizer updates."""
    return frozenset[int]().union(*(optimizer.model for optimizer in optimizers(survey)))


@_cached
def optimizer_places(survey: Survey) -> Objects:
    """The optimizers."""
    return frozenset[int]().union(*(optimizer.objects for optimizer in optimizers(survey)))


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
    return [call for call in survey.calls if any(event.name in LOADERS for event in events_of(survey, call))]


def assigned_name(survey: Survey, call: cst.Call) -> str | None:
    """Variable or key to which the loader is assigned."""
    parent = survey.parent(call)
    return next((dotted(target) for target in targets_of(parent or call)), None)


def is_held_out(survey: Survey, call: cst.Call) -> bool:
    """Whether a loader only feeds evaluation: no loop over it has a backward pass, or only its name is known."""
    loops = loops_over(survey, call)
    if loops:
        training = set(backward_calls(survey))
        return not any(reaches(survey, loop, training, 4) for loop in loops)
    return any(word in (assigned_name(survey, call) or "").lower() for word in ("val", "eval", "test", "dev"))


def loops_over(survey: Survey, call: cst.Call) -> list[cst.For | cst.CompFor]:
    """Loops over the batches of a loader, also those of comprehensions."""
    places = objects_of(survey, call)
    loops = []
    for loop in survey.nodes:
        if isinstance(loop, cst.For | cst.CompFor):
            names = names_of(survey, places, survey.function(loop))
            if call in walk(loop.iter) or any(name in names for name in iterated(loop.iter)):
                loops.append(loop)
    return loops


def loops_of(survey: Survey, event: Call) -> list[cst.For]:
    """Loops around a call as it would run, outermost first, also those of the functions that lead to it."""
    loops = (node_of(survey, loop) for loop in event.loops)
    return [loop for loop in loops if isinstance(loop, cst.For)]


def reaches(survey: Survey, node: cst.CSTNode, calls: set[cst.Call], depth: int) -> bool:
    """Whether a statement makes one of the calls, also through functions of the script."""
    for inner in walk(node):
        if inner in calls:
            return True
        if depth and isinstance(inner, cst.Call):
            for function in callees(survey, inner):
                if function is not node and reaches(survey, function.body, calls, depth - 1):
                    return True
    return False


def iterated(node: cst.CSTNode) -> list[str]:
    """Names over which a ``for`` loop may iterate, directly or through calls such as enumerate and tqdm."""
    name = dotted(node)
    if name is not None:
        return [name]
    if isinstance(node, cst.Call):
        return [name for arg in node.args for name in iterated(arg.value)]
    return []
