"""The source of a forward method: what it reads of each argument, and how a call puts its arguments together."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from torch.utils._pytree import MappingKey, register_pytree_node

from smp_advisor.profiling.example import COUNTERS, EDGES, LABELS, MASKS, STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["CallForm", "Leaf", "call_forms", "forward_arguments", "forward_method", "reading_layer"]

Kind = Literal["mapping", "attributes", "sequence"]

_MOST_CHARACTERS = 100_000
"""Longer sources are not parsed."""
_DEEPEST = 4
"""Methods and modules that a container is followed through."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Key:
    """A part of a container."""

    name: str
    required: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """The parts that a method reads of a container, in the order of its source; positions have variables' names."""

    kind: Kind
    keys: tuple[Key, ...]


def forward_method(model: nn.Module) -> Callable[..., Any]:
    """The method that a training step calls: forward, or `training_step` of a module without one."""
    step = getattr(model, "training_step", None)
    return step if type(model).forward is nn.Module.forward and callable(step) else model.forward


def forward_arguments(model: nn.Module) -> dict[str, inspect.Parameter]:
    """Parameters of the forward method by name; empty if its signature is unknown."""
    return _parameters(forward_method(model))


def reading_of(model: nn.Module, name: str) -> Reading | None:
    """The parts that the forward method reads of the parameter, or None if it is no container.

    ``batch["input_ids"]``, ``batch.get("mask")``, ``batch.tokens``, ``x, y = batch``, ``batch[0]`` and
    ``self.model(**batch)`` are understood, and the fields of an annotated dataclass or named tuple.
    """
    method = forward_method(model)
    parameter = _parameters(method).get(name)
    declared = None if parameter is None else _of_annotation(parameter.annotation, method)
    return declared or _reading(model, method, name, _DEEPEST)


def reading_layer(model: nn.Module, argument: str, part: str) -> nn.Module | None:
    """The module of the model that is called with the argument, or with the part of it: ``self.embed(batch["x"])``."""
    method = forward_method(model)
    tree = _tree(method)
    if tree is None:
        return None
    for node in _in_order(tree):
        if not isinstance(node, ast.Call) or not node.args or not _is_part(node.args[0], argument, part):
            continue
        callee = _callee(model, method, node.func)
        if callee is not None and isinstance(callee[0], nn.Module) and callee[0] is not model:
            return callee[0]
    return None


def _is_part(node: ast.expr, argument: str, part: str) -> bool:
    """Whether the expression is the argument itself, a variable with the name of the part, or the part."""
    match node:
        case ast.Name(id=name):
            return name == part
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
            return (name, key) == (argument, part)
        case ast.Attribute(value=ast.Name(id=name), attr=key):
            return (name, key) == (argument, part)
    return False


def _parameters(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(method).parameters)
    except (TypeError, ValueError):
        return {}


def _of_annotation(annotation: Any, method: Callable[..., Any]) -> Reading | None:
    """Fields of a dataclass or a named tuple."""
    if isinstance(annotation, str):
        annotation = getattr(inspect.unwrap(method), "__globals__", {}).get(annotation)
    if not isinstance(annotation, type) or issubclass(annotation, Tensor | nn.Module):
        return None
    if dataclasses.is_dataclass(annotation):
        fields = dataclasses.fields(annotation)
        missing = dataclasses.MISSING
        keys = [Key(f.name, f.default is missing and f.default_factory is missing) for f in fields]
        return Reading("attributes", tuple(keys))
    names = getattr(annotation, "_fields", ())
    defaults = getattr(annotation, "_field_defaults", {})
    return Reading("attributes", tuple(Key(name, name not in defaults) for name in names)) if names else None


def _reading(owner: object, method: Callable[..., Any], name: str, depth: int) -> Reading | None:
    tree = _tree(method)
    if tree is None or depth == 0:
        return None
    keys: dict[Kind, dict[str, bool]] = {"mapping": {}, "attributes": {}, "sequence": {}}
    positions: dict[int, str] = {}
    is_tensor = False
    for node in _in_order(tree):
        passed = _passed_on(owner, method, node, name, depth) if isinstance(node, ast.Call) else None
        if passed is not None:
            for key in passed.keys:
                keys[passed.kind].setdefault(key.name, key.required)
        use = _use(node, name)
        if use is not None:
            kind, part, required = use
            keys[kind][part] = keys[kind].get(part, False) or required
        if depth == _DEEPEST or isinstance(node, ast.Assign):
            for index, variable in _positions(node, name).items():
                positions.setdefault(index, variable)
        is_tensor |= _is_of_tensors(node, name) or _is_checked(node, name)
    if not is_tensor and sorted(positions) == list(range(len(positions))):
        keys["sequence"] |= dict.fromkeys((positions[index] for index in sorted(positions)), True)
    return next(
        (Reading(kind, tuple(Key(*key) for key in parts.items())) for kind, parts in keys.items() if parts), None
    )


def _use(node: ast.AST, name: str) -> tuple[Kind, str, bool] | None:
    """A key or an attribute of the parameter that the expression reads, and whether it must be there."""
    match node:
        case ast.Subscript(value=ast.Name(id=read), slice=ast.Constant(value=str(key))) if read == name:
            return "mapping", key, True
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=read), attr="get" | "pop" as how),
            args=[ast.Constant(value=str(key)), *default],
        ) if read == name:
            return "mapping", key, how == "pop" and not default
        case ast.Compare(left=ast.Constant(value=str(key)), comparators=[ast.Name(id=read)]) if read == name:
            return "mapping", key, False
        case ast.Attribute(value=ast.Name(id=read), attr=key) if read == name:
            return None if hasattr(Tensor, key) or hasattr(dict, key) else ("attributes", key, True)
    return None


def _positions(node: ast.AST, name: str) -> dict[int, str]:
    """Positions of the parameter that the statement reads, with the names of the variables."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Name(id=read)) if read == name:
            names = [part.id for part in parts if isinstance(part, ast.Name)]
            return dict(enumerate(names)) if len(names) == len(parts) else {}
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.Subscript(value=ast.Name(id=read), slice=ast.Constant(value=int(index))),
        ) if read == name and index >= 0:
            return {index: target}
        case ast.Subscript(value=ast.Name(id=read), slice=ast.Constant(value=int(index))) if (
            read == name and index >= 0
        ):
            return {index: "y" if index else "x"}
    return {}


def _is_checked(node: ast.AST, name: str) -> bool:
    """Whether the expression reads the type of the parameter, which may then be a tensor, too."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "type"), args=[ast.Name(id=read), *_]):
            return read == name
    return False


def _is_of_tensors(node: ast.AST, name: str) -> bool:
    """Whether the expression reads an attribute of the parameter that tensors have and tuples do not."""
    match node:
        case ast.Attribute(value=ast.Name(id=read), attr=key):
            return read == name and hasattr(Tensor, key) and not hasattr(tuple, key)
    return False


def _passed_on(owner: object, method: Callable[..., Any], call: ast.Call, name: str, depth: int) -> Reading | None:
    """The parts of the parameter that the called method or module reads; it gets all of it, its names or positions."""
    callee = _callee(owner, method, call.func)
    if callee is None:
        return None
    target, function = callee
    parameters = {key: parameter for key, parameter in _parameters(function).items() if parameter.kind not in _VARIADIC}
    explicit = {keyword.arg for keyword in call.keywords if keyword.arg}
    for index, argument in enumerate(call.args):
        if isinstance(argument, ast.Name) and argument.id == name and index < len(parameters):
            return _reading(target, function, list(parameters)[index], depth - 1)
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name) and argument.value.id == name:
            following = [key for key in list(parameters)[index:] if key not in explicit]
            return Reading(
                "sequence", tuple(Key(key, parameters[key].default is inspect.Parameter.empty) for key in following)
            )
    for keyword in call.keywords:
        if not isinstance(keyword.value, ast.Name) or keyword.value.id != name:
            continue
        if keyword.arg is not None:
            return _reading(target, function, keyword.arg, depth - 1)
        remaining = [key for key in list(parameters)[len(call.args) :] if key not in explicit]
        keys = [Key(key, parameters[key].default is inspect.Parameter.empty) for key in remaining]
        return Reading("mapping", tuple(keys)) if keys else None
    return None


def _callee(owner: object, method: Callable[..., Any], function: ast.expr) -> tuple[object, Callable[..., Any]] | None:
    """The module or method that ``self.model(...)``, ``self.encode(...)`` or ``super().forward(...)`` calls."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    own_name = code.co_varnames[0] if code is not None and code.co_varnames else "self"
    path: list[str] = []
    node = function
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
        source = getattr(method, "__func__", method)
        own = next((cls for cls in type(owner).__mro__ if source in vars(cls).values()), None)
        target: object = None if own is None else getattr(super(own, owner), path[0], None) if path else None
        return (owner, target) if callable(target) and len(path) == 1 else None
    if not isinstance(node, ast.Name) or node.id != own_name or not path:
        return None
    target, parent = owner, owner
    for attribute in path:
        parent, target = target, getattr(target, attribute, None)
    if isinstance(target, nn.Module):
        return target, forward_method(target)
    return (parent, target) if inspect.ismethod(target) else None


def _tree(method: Callable[..., Any]) -> ast.AST | None:
    try:
        source = inspect.getsource(inspect.unwrap(method))
        return ast.parse(textwrap.dedent(source)) if len(source) <= _MOST_CHARACTERS else None
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError):
        return None


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes in the order of the source."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _in_order(child)


class Record(dict[str, Any]):
    """Values by name that are attributes, too; PyTorch's functions on nested inputs look into it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def to(self, *_: object, **__: object) -> Record:
        """The record itself: its tensors are already on the device of the model."""
        return self


register_pytree_node(
    Record,
    lambda record: (list(record.values()), list(record)),
    lambda values, names: Record(zip(names, values, strict=True)),
    flatten_with_keys_fn=lambda record: ([(MappingKey(name), value) for name, value in record.items()], list(record)),
)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_ANY_KEY = "_"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that a call passes, by itself or in a container."""

    name: str
    """Its meaning: the name of the argument, the key or the variable."""
    required: bool
    argument: str
    """The parameter of the forward method."""
    is_part: bool

    @property
    def text(self) -> str:
        """Text for the user: ``labels``, or ``batch.labels``."""
        return f"{self.argument}.{self.name}" if self.is_part else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class CallForm:
    """The tensors of a call in the order of their likelihood as main argument, and the inputs of the model."""

    leaves: tuple[Leaf, ...]
    inputs: Callable[[Mapping[Leaf, Any]], Any]
    """Inputs by name or by position, with the values of some of the leaves."""


def call_forms(model: nn.Module) -> list[CallForm]:
    """How the forward method can be called: with the containers that its source reads, then with tensors only."""
    parameters = forward_arguments(model)
    readings: dict[str, Reading] = {}
    for name, parameter in parameters.items():
        optional = parameter.default is not parameter.empty and name not in list(parameters)[:1]
        if name in EDGES | LABELS | MASKS or STATES.match(name) or optional:
            continue
        if (reading := reading_of(model, name)) is not None:
            readings[name] = reading
    forms = [_form(parameters, chosen) for chosen in ([readings, {}] if readings else [{}])]
    return [form for form in forms if form.leaves]


def _form(parameters: Mapping[str, inspect.Parameter], readings: Mapping[str, Reading]) -> CallForm:
    leaves: list[Leaf] = []
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty
        if name in readings:
            keys = readings[name].keys
            is_part = parameter.kind not in variadic
            leaves += [Leaf(key.name, key.required and (required or not leaves), name, is_part) for key in _named(keys)]
        elif parameter.kind not in variadic and name not in COUNTERS:
            leaves.append(Leaf(name, required, name, is_part=False))
    by_position = any(parameter.kind in _POSITIONAL for parameter in parameters.values()) and any(
        parameters[leaf.argument].kind in _POSITIONAL for leaf in leaves
    )
    counters = [
        name for name, p in parameters.items() if name in COUNTERS and p.default is p.empty and p.kind not in variadic
    ]

    def inputs(values: Mapping[Leaf, Any]) -> Any:
        arguments: dict[str, Any] = dict.fromkeys(counters, 0)
        variable: list[Any] = []
        for name in parameters:
            parts = {leaf.name: value for leaf, value in values.items() if leaf.argument == name}
            if not parts:
                continue
            kind = parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= parts
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                variable += parts.values()
            elif name in readings:
                arguments[name] = _container(readings[name], parts)
            else:
                arguments[name] = parts[name]
        return (*arguments.values(), *variable) if by_position else arguments

    main = next((leaf for leaf in leaves if leaf.name not in LABELS | MASKS | EDGES), None)
    ordered = [] if main is None else [main, *(leaf for leaf in leaves if leaf is not main)]
    return CallForm(leaves=tuple(ordered), inputs=inputs)


def _named(keys: tuple[Key, ...]) -> list[Key]:
    """The keys; a part that the method ignores is a label."""
    return [Key("label", key.required) if key.name == _ANY_KEY else key for key in keys]


def _container(reading: Reading, parts: dict[str, Any]) -> Any:
    if reading.kind == "sequence":
        return tuple(parts.values())
    if reading.kind == "mapping":
        return parts
    return Record({key.name: parts.get(key.name) for key in reading.keys})  # optional fields are None
