"""Follow statements in the order in which they would run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Literal

from smp_advisor.estimators.cells.expressions import element_values, evaluate, is_index, shown, truth
from smp_advisor.estimators.cells.state import MAX_ITEMS, merge, merged, restore, snapshot
from smp_advisor.estimators.values import Entry, External, Function, Listing, Made, Scalar, Table, Unknown, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.estimators.cells.state import Scopes, State

__all__ = ["Leaving", "bind", "execute", "returned_by"]

Leaving = Literal["return", "raise", "break", "continue"] | None

_LEAVING_CALLS = ("sys.exit", "exit", "quit", "os._exit")


_RETURNED = "return"
"""What the function has returned so far; a name that no assignment can bind."""


def execute(state: State, scopes: Scopes, statements: list[ast.stmt]) -> Leaving:
    """Follow `statements`; how they leave the block, if they surely do."""
    for statement in statements:
        state.step()
        handler = _HANDLERS.get(type(statement))
        leaving = handler(state, scopes, statement) if handler is not None else None
        if leaving is not None:
            if leaving == "raise" and not state.doubts and state.stopped is None and not state.depth:
                state.stopped = (statement.lineno, "it ends there with an error")
            return leaving
    return None


def returned_by(scope: dict[str, Value]) -> Value:
    """What a function has returned that ran with these names."""
    return scope.get(_RETURNED, Scalar(None))


def bind(state: State, scopes: Scopes, target: ast.expr, value: Value, value_node: ast.expr | None) -> None:
    """Assign to a name, an element, or several of them."""
    if isinstance(target, ast.Name):
        scopes[-1][target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.items if isinstance(value, Listing) and len(value.items) == len(target.elts) else None
        for position, inner in enumerate(target.elts):
            part = (
                parts[position] if parts is not None else Unknown(_why(value, "it is unpacked from what is not known"))
            )
            bind(state, scopes, inner.value if isinstance(inner, ast.Starred) else inner, part, None)
    elif isinstance(target, ast.Subscript):
        _set_item(state, scopes, target, value, value_node)
    elif isinstance(target, ast.Attribute):
        owner = evaluate(state, scopes, target.value)
        if isinstance(owner, Made):
            owner.keywords[target.attr] = Entry(value)


def _set_item(state: State, scopes: Scopes, target: ast.Subscript, value: Value, value_node: ast.expr | None) -> None:
    owner, key = evaluate(state, scopes, target.value), evaluate(state, scopes, target.slice)
    if isinstance(owner, Table) and isinstance(key, Scalar):
        span = state.span(value_node) if value_node is not None else None
        owner.entries[key.value] = Entry(value, span or state.span(target), span)
    elif isinstance(owner, Table):
        owner.open = "a key is computed"
    elif isinstance(owner, Listing) and isinstance(key, Scalar) and is_index(key.value, owner):
        owner.items[key.value] = value


def _why(value: Value, otherwise: str) -> str:
    return value.why if isinstance(value, Unknown) else otherwise


def _assign(state: State, scopes: Scopes, node: ast.Assign) -> Leaving:
    value = evaluate(state, scopes, node.value)
    for target in node.targets:
        bind(state, scopes, target, value, node.value)
    return None


def _annotated(state: State, scopes: Scopes, node: ast.AnnAssign) -> Leaving:
    if node.value is not None:
        bind(state, scopes, node.target, evaluate(state, scopes, node.value), node.value)
    return None


def _augmented(state: State, scopes: Scopes, node: ast.AugAssign) -> Leaving:
    from smp_advisor.estimators.cells.operators import compute

    before = evaluate(state, scopes, node.target)
    value = evaluate(state, scopes, node.value)
    if isinstance(before, Table) and isinstance(value, Table) and isinstance(node.op, ast.BitOr):
        before.entries.update(value.entries)
        before.open = before.open or value.open
    elif isinstance(before, Listing) and isinstance(value, Listing) and isinstance(node.op, ast.Add):
        before.items.extend(value.items)
    else:
        bind(state, scopes, node.target, compute(node.op, before, value, state.span(node.value)), None)
    return None


def _expression(state: State, scopes: Scopes, node: ast.Expr) -> Leaving:
    value = evaluate(state, scopes, node.value)
    leaves = isinstance(value, Made) and value.path in _LEAVING_CALLS
    return "raise" if leaves else None


def _function(_state: State, scopes: Scopes, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Leaving:
    decorated = bool(node.decorator_list)
    scopes[-1][node.name] = Unknown(f"{node.name} is decorated") if decorated else Function(node, scopes)
    return None


def _class(_state: State, scopes: Scopes, node: ast.ClassDef) -> Leaving:
    scopes[-1][node.name] = Unknown(f"the class {node.name} is not followed")
    return None


def _return(state: State, scopes: Scopes, node: ast.Return) -> Leaving:
    value = Scalar(None) if node.value is None else evaluate(state, scopes, node.value)
    earlier = scopes[-1].get(_RETURNED)
    scopes[-1][_RETURNED] = (
        value if earlier is None else merged(earlier, value, "the function returns in several places")
    )
    return "return"


def _if(state: State, scopes: Scopes, node: ast.If) -> Leaving:
    known = truth(evaluate(state, scopes, node.test))
    if known is not None:
        return execute(state, scopes, node.body if known else node.orelse)
    why = f"it depends on `{shown(node.test)}`"
    before = snapshot(scopes)
    state.doubts.append(why)
    first = execute(state, scopes, node.body)
    after = [dict(scope) for scope in scopes]
    restore(scopes, before)
    second = execute(state, scopes, node.orelse)
    state.doubts.pop()
    if first is not None and second is not None:
        merge(scopes, after, why)
        return first if first == second else "raise"
    if second is not None:
        kept = [scope.get(_RETURNED) for scope in scopes]
        restore(scopes, after)
        _keep_returned(scopes, kept, why)
        return None
    if first is not None:
        _keep_returned(scopes, [names.get(_RETURNED) for names in after], why)
        return None
    merge(scopes, after, why)
    return None


def _keep_returned(scopes: Scopes, values: list[Value | None], why: str) -> None:
    """What the branch that left has returned is one possibility."""
    for scope, value in zip(scopes, values, strict=True):
        if value is not None:
            scope[_RETURNED] = merged(scope[_RETURNED], value, why) if _RETURNED in scope else Unknown(why)


def _for(state: State, scopes: Scopes, node: ast.For | ast.AsyncFor) -> Leaving:
    items = element_values(evaluate(state, scopes, node.iter))
    if items is None or len(items) > MAX_ITEMS:
        return _loop_in_doubt(state, scopes, node, node.body)
    for item in items:
        bind(state, scopes, node.target, item, None)
        leaving = execute(state, scopes, node.body)
        if leaving == "break":
            return None
        if leaving in ("return", "raise"):
            return leaving
    return execute(state, scopes, node.orelse)


def _while(state: State, scopes: Scopes, node: ast.While) -> Leaving:
    for _ in range(MAX_ITEMS):
        known = truth(evaluate(state, scopes, node.test))
        if known is None:
            break
        if not known:
            return execute(state, scopes, node.orelse)
        leaving = execute(state, scopes, node.body)
        if leaving == "break":
            return None
        if leaving in ("return", "raise"):
            return leaving
    return _loop_in_doubt(state, scopes, node, node.body)


def _loop_in_doubt(state: State, scopes: Scopes, node: ast.stmt, body: list[ast.stmt]) -> Leaving:
    """A loop over something that is not known: what it changes is not known either."""
    why = f"it is set in the loop of line {state.source.locate(node.lineno)[1]}"
    before = snapshot(scopes)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        bind(state, scopes, node.target, Unknown(why), None)
    state.doubts.append(why)
    execute(state, scopes, body)
    state.doubts.pop()
    merge(scopes, before, why)
    return None


def _with(state: State, scopes: Scopes, node: ast.With | ast.AsyncWith) -> Leaving:
    for item in node.items:
        value = evaluate(state, scopes, item.context_expr)
        if item.optional_vars is not None:
            bind(state, scopes, item.optional_vars, value, None)
    return execute(state, scopes, node.body)


def _try(state: State, scopes: Scopes, node: ast.Try) -> Leaving:
    """As where nothing goes wrong: handlers are for what the credentials or the network do."""
    leaving = execute(state, scopes, node.body)
    if leaving is None:
        leaving = execute(state, scopes, node.orelse)
    return execute(state, scopes, node.finalbody) or leaving


def _delete(state: State, scopes: Scopes, node: ast.Delete) -> Leaving:
    for target in node.targets:
        if isinstance(target, ast.Name):
            scopes[-1].pop(target.id, None)
        elif isinstance(target, ast.Subscript):
            owner, key = evaluate(state, scopes, target.value), evaluate(state, scopes, target.slice)
            if isinstance(owner, Table) and isinstance(key, Scalar):
                owner.entries.pop(key.value, None)
    return None


def _import(_state: State, scopes: Scopes, node: ast.Import) -> Leaving:
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        scopes[-1][name] = External(alias.name if alias.asname else name)
    return None


def _import_from(_state: State, scopes: Scopes, node: ast.ImportFrom) -> Leaving:
    module = "." * node.level + (node.module or "")
    for alias in node.names:
        scopes[-1][alias.asname or alias.name] = External(f"{module}.{alias.name}")
    return None


def _raise(_state: State, _scopes: Scopes, _node: ast.Raise) -> Leaving:
    return "raise"


def _break(_state: State, _scopes: Scopes, _node: ast.Break) -> Leaving:
    return "break"


def _continue(_state: State, _scopes: Scopes, _node: ast.Continue) -> Leaving:
    return "continue"


_HANDLERS: dict[type[ast.stmt], Callable[..., Leaving]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Return: _return,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.Delete: _delete,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Raise: _raise,
    ast.Break: _break,
    ast.Continue: _continue,
}
