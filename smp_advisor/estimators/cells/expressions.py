"""What an expression of a cell holds, as far as reading it tells."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, TypeGuard

from smp_advisor.estimators.cells.operators import compare, compute, formatted, negated, truth
from smp_advisor.estimators.cells.state import MAX_ITEMS
from smp_advisor.estimators.values import (
    Entry,
    External,
    Function,
    Listing,
    Made,
    Method,
    Scalar,
    Table,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.estimators.cells.state import Scopes, State

__all__ = ["element_values", "evaluate", "is_index", "shown", "truth", "unpack"]

_LONGEST_SHOWN = 60
_BUILT_IN = frozenset(
    {
        *("dict", "list", "tuple", "set", "int", "float", "str", "bool", "isinstance", "print", "exit", "quit"),
        *("len", "min", "max", "sum", "abs", "round", "range", "sorted", "enumerate", "zip", "any", "all"),
    }
)


def evaluate(state: State, scopes: Scopes, node: ast.expr) -> Value:
    """What `node` holds."""
    state.step()
    handler = _HANDLERS.get(type(node))
    if handler is not None:
        return handler(state, scopes, node)
    return Unknown("it is computed when it runs", state.span(node))


def shown(node: ast.expr) -> str:
    """The expression's text, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def element_values(value: Value) -> list[Value] | None:
    """What iterating over it gives; None where that is not known."""
    if isinstance(value, Listing):
        return list(value.items)
    if isinstance(value, Table) and not value.open:
        return [Scalar(key) for key in value.entries]
    if isinstance(value, Scalar) and isinstance(value.value, str) and len(value.value) <= MAX_ITEMS:
        return [Scalar(letter) for letter in value.value]
    return None


def is_index(position: object, owner: Listing) -> TypeGuard[int]:
    """Whether a list is long enough for `position`."""
    return isinstance(position, int) and -len(owner.items) <= position < len(owner.items)


def _name(_state: State, scopes: Scopes, node: ast.Name) -> Value:
    for scope in reversed(scopes):
        if node.id in scope:
            return scope[node.id]
    if node.id in _BUILT_IN or node.id[:1].isupper():
        return External(node.id)
    return Unknown(f"{node.id} is set elsewhere")


def _constant(state: State, _scopes: Scopes, node: ast.Constant) -> Value:
    return Scalar(node.value, state.span(node))


def _attribute(state: State, scopes: Scopes, node: ast.Attribute) -> Value:
    owner = evaluate(state, scopes, node.value)
    if isinstance(owner, External):
        return External(f"{owner.path}.{node.attr}")
    if isinstance(owner, Made):
        found = owner.get(node.attr)
        return found if found is not None else Method(owner, node.attr)
    if isinstance(owner, Unknown):
        return Method(owner, node.attr)
    return Method(owner, node.attr)


def _subscript(state: State, scopes: Scopes, node: ast.Subscript) -> Value:
    owner = evaluate(state, scopes, node.value)
    if isinstance(node.slice, ast.Slice):
        return _slice(state, scopes, owner, node.slice)
    key = evaluate(state, scopes, node.slice)
    if isinstance(owner, Table) and isinstance(key, Scalar):
        entry = owner.entries.get(key.value)
        if entry is not None:
            return entry.value
        return Unknown(owner.open or f"the key {key.value!r} is not in the dictionary", state.span(node))
    if isinstance(owner, Listing) and isinstance(key, Scalar) and is_index(key.value, owner):
        return owner.items[key.value]
    if isinstance(owner, Scalar) and isinstance(owner.value, str) and isinstance(key, Scalar):
        try:
            return Scalar(owner.value[key.value], state.span(node))
        except (TypeError, IndexError):
            return Unknown("there is no such letter", state.span(node))
    for part in (owner, key):
        if isinstance(part, Unknown):
            return Unknown(part.why, state.span(node))
    return Unknown(f"`{shown(node)}` is known only when it runs", state.span(node))


def _slice(state: State, scopes: Scopes, owner: Value, node: ast.Slice) -> Value:
    parts = [
        Scalar(None) if part is None else evaluate(state, scopes, part) for part in (node.lower, node.upper, node.step)
    ]
    bounds = [
        part.value for part in parts if isinstance(part, Scalar) and (part.value is None or isinstance(part.value, int))
    ]
    if len(bounds) == 3 and bounds[2] != 0:
        if isinstance(owner, Listing):
            return Listing(owner.items[slice(*bounds)])
        if isinstance(owner, Scalar) and isinstance(owner.value, str):
            return Scalar(owner.value[slice(*bounds)])
    return Unknown("part of something that is known only when it runs")


def _sequence(state: State, scopes: Scopes, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items: list[Value] = []
    for item in node.elts:
        if isinstance(item, ast.Starred):
            inner = element_values(evaluate(state, scopes, item.value))
            if inner is None:
                return Unknown("it is unpacked from what is not known", state.span(node))
            items += inner
        else:
            items.append(evaluate(state, scopes, item))
    return Listing(items, state.span(node))


def _mapping(state: State, scopes: Scopes, node: ast.Dict) -> Value:
    table = Table({}, state.span(node), state.left_out(state.span(node)))
    for key, item in zip(node.keys, node.values, strict=True):
        value = evaluate(state, scopes, item)
        if key is None:
            unpack(table, value)
            continue
        known = evaluate(state, scopes, key)
        value_span, key_span = state.span(item), state.span(key)
        if isinstance(known, Scalar):
            span = type(key_span)(key_span.start, value_span.end)
            table.entries[known.value] = Entry(value, span, value_span, key_span)
        else:
            table.open = f"the key `{shown(key)}` is computed"
    return table


def unpack(table: Table, value: Value) -> None:
    """Add what ``**value`` gives."""
    if isinstance(value, Table):
        table.entries |= {
            key: Entry(entry.value, entry.span, entry.value_span, entry.key_span)
            for key, entry in value.entries.items()
        }
        table.open = table.open or value.open
    else:
        table.open = value.why if isinstance(value, Unknown) else "what is unpacked is known only when it runs"


def _binary(state: State, scopes: Scopes, node: ast.BinOp) -> Value:
    return compute(node.op, evaluate(state, scopes, node.left), evaluate(state, scopes, node.right), state.span(node))


def _unary(state: State, scopes: Scopes, node: ast.UnaryOp) -> Value:
    return negated(node.op, evaluate(state, scopes, node.operand), state.span(node))


def _boolean(state: State, scopes: Scopes, node: ast.BoolOp) -> Value:
    value: Value = Scalar(None)
    for operand in node.values:
        value = evaluate(state, scopes, operand)
        known = truth(value)
        if known is None:
            return (
                value if isinstance(value, Unknown) else Unknown(f"it depends on `{shown(operand)}`", state.span(node))
            )
        if known == isinstance(node.op, ast.Or):
            return value
    return value


def _compare(state: State, scopes: Scopes, node: ast.Compare) -> Value:
    left = evaluate(state, scopes, node.left)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = evaluate(state, scopes, comparator)
        known = compare(op, left, right)
        if known is None:
            return Unknown(f"it depends on `{shown(node)}`", state.span(node))
        if not known:
            return Scalar(value=False, span=state.span(node))
        left = right
    return Scalar(value=True, span=state.span(node))


def _conditional(state: State, scopes: Scopes, node: ast.IfExp) -> Value:
    known = truth(evaluate(state, scopes, node.test))
    if known is not None:
        return evaluate(state, scopes, node.body if known else node.orelse)
    from smp_advisor.estimators.cells.state import merged

    first, second = evaluate(state, scopes, node.body), evaluate(state, scopes, node.orelse)
    return merged(first, second, f"it depends on `{shown(node.test)}`")


def _text(state: State, scopes: Scopes, node: ast.JoinedStr) -> Value:
    parts: list[str] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            value = evaluate(state, scopes, part.value)
            spec = Scalar("") if part.format_spec is None else evaluate(state, scopes, part.format_spec)
            text = formatted(value, part.conversion, spec.value) if isinstance(spec, Scalar) else None
            if text is None or sum(map(len, parts)) > 4 * MAX_ITEMS:
                why = value.why if isinstance(value, Unknown) else f"`{shown(part.value)}` is known only when it runs"
                return Unknown(why, state.span(node))
            parts.append(text)
    return Scalar("".join(parts), state.span(node))


def _comprehension(
    state: State, scopes: Scopes, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
) -> Value:
    inner: Scopes = (*scopes, {})
    table, items = Table({}, state.span(node)), Listing([], state.span(node))
    known = False
    for known in _rounds(state, inner, node.generators):
        if not known:
            break
        if isinstance(node, ast.DictComp):
            key = evaluate(state, inner, node.key)
            if not isinstance(key, Scalar):
                return Unknown("its keys are computed", state.span(node))
            table.entries[key.value] = Entry(evaluate(state, inner, node.value))
        else:
            items.items.append(evaluate(state, inner, node.elt))
    else:
        return table if isinstance(node, ast.DictComp) else items
    return Unknown(f"`{shown(node)}` goes over what is known only when it runs", state.span(node))


def _rounds(state: State, scopes: Scopes, generators: list[ast.comprehension]) -> Iterator[bool]:
    """Bind the names of each round; False where a round is not known."""
    from smp_advisor.estimators.cells.statements import bind

    if not generators:
        yield True
        return
    first, *rest = generators
    items = element_values(evaluate(state, scopes, first.iter))
    if items is None or len(items) > MAX_ITEMS:
        yield False
        return
    for item in items:
        bind(state, scopes, first.target, item, None)
        tests = [truth(evaluate(state, scopes, test)) for test in first.ifs]
        if None in tests:
            yield False
            return
        if all(tests):
            yield from _rounds(state, scopes, rest)


def _lambda(_state: State, scopes: Scopes, node: ast.Lambda) -> Value:
    return Function(node, scopes)


def _walrus(state: State, scopes: Scopes, node: ast.NamedExpr) -> Value:
    value = evaluate(state, scopes, node.value)
    scopes[-1][node.target.id] = value
    return value


def _await(state: State, scopes: Scopes, node: ast.Await) -> Value:
    return evaluate(state, scopes, node.value)


def _call(state: State, scopes: Scopes, node: ast.Call) -> Value:
    from smp_advisor.estimators.cells.calls import call

    return call(state, scopes, node)


_HANDLERS: dict[type[ast.expr], Callable[[State, Scopes, Any], Value]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Tuple: _sequence,
    ast.List: _sequence,
    ast.Set: _sequence,
    ast.Dict: _mapping,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.JoinedStr: _text,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.Lambda: _lambda,
    ast.NamedExpr: _walrus,
    ast.Await: _await,
    ast.Call: _call,
}
