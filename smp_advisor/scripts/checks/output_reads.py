"""Keys of the outputs that a function returns, and of those that its caller reads."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.reading.module import Module

__all__ = ["read_keys", "returned_keys"]

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def returned_keys(function: ast.FunctionDef | ast.AsyncFunctionDef, value: ast.expr | None) -> tuple[object, ...]:
    """Positions or keys of the tensors in a returned tuple or dictionary; empty for other values."""
    if isinstance(value, ast.Name):
        assigned = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and any(_is_name(target, value.id) for target in node.targets)
        ]
        changed = sum(_is_name(node, value.id) for node in ast.walk(function))
        value = assigned[0] if len(assigned) == 1 and changed == 2 else None
    if isinstance(value, ast.Tuple) and not any(isinstance(item, ast.Starred) for item in value.elts):
        return tuple(range(len(value.elts)))
    if isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) for key in value.keys):
        return tuple(key.value for key in value.keys if isinstance(key, ast.Constant))
    return ()


def read_keys(module: Module, call: ast.Call, keys: tuple[object, ...]) -> frozenset[object] | None:
    """The keys or positions of the call's result that the code around it reads; None if that is not visible.

    Parameters
    ----------
    module
        The file of the call.
    call
        A call that returns a tuple or a dictionary.
    keys
        What it returns, by `returned_keys`.
    """
    parent = module.parent(call)
    if isinstance(parent, (ast.Subscript, ast.Attribute)):
        key = _key(module, call)
        return None if key is None else frozenset([key[0]])
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return None
    function: ast.AST | None = parent
    while function is not None and not isinstance(function, (*_Function, ast.Module)):
        function = module.parent(function)
    if not isinstance(function, _Function):
        return None  # another file may import the names of a module
    target = parent.targets[0]
    if isinstance(target, ast.Tuple):
        if len(target.elts) != len(keys) or not all(isinstance(name, ast.Name) for name in target.elts):
            return None
        loaded = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _loads(node)}
        shared = {
            name for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }
        names = [name.id for name in target.elts if isinstance(name, ast.Name)]
        return frozenset(key for key, name in zip(keys, names, strict=True) if name in loaded | shared)
    return _keys_of_name(module, function, target) if isinstance(target, ast.Name) else None


def _keys_of_name(module: Module, function: ast.AST, target: ast.Name) -> frozenset[object] | None:
    read: set[object] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or node.id != target.id or node is target:
            continue
        key = _key(module, node)
        if not _loads(node) or key is None:
            return None
        read.add(key[0])
    return frozenset(read)


def _key(module: Module, node: ast.expr) -> tuple[object] | None:
    """The literal by which a value is read: ``out[0]``, ``out["loss"]`` or ``out.get("loss")``."""
    parent = module.parent(node)
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant):
        return (parent.slice.value,)
    if isinstance(parent, ast.Attribute) and parent.attr == "get":
        call = module.parent(parent)
        if isinstance(call, ast.Call) and call.func is parent and call.args and isinstance(call.args[0], ast.Constant):
            return (call.args[0].value,)
    return None


def _loads(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
