"""How a forward method reads the containers that it takes: a batch's keys, attributes or positions, by its source.

The source is parsed, not run. A container that is passed on to another method or module is followed there.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Key", "Reading", "forward_arguments", "forward_method", "reading_layer", "reading_of"]

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
