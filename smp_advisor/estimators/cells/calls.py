"""Calls in a cell: its own functions are entered, plain data is worked on, everything else is noted."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.estimators.cells.expressions import element_values, evaluate, shown, unpack
from smp_advisor.estimators.cells.functions import FUNCTIONS
from smp_advisor.estimators.cells.state import MAX_DEPTH, MAX_ITEMS
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
    clone,
    plain,
)

if TYPE_CHECKING:
    from smp_advisor.estimators.cells.state import Scopes, State

__all__ = ["call", "enter"]

_TEXT_METHODS = frozenset(
    {
        *("lower", "upper", "title", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace"),
        *("split", "rsplit", "partition", "rpartition", "join", "format"),
        *("startswith", "endswith", "count", "find", "isdigit"),
    }
)


def call(state: State, scopes: Scopes, node: ast.Call) -> Value:
    """What a call returns, as far as reading tells."""
    callee = evaluate(state, scopes, node.func)
    positional, keywords, gap = _arguments(state, scopes, node)
    gap = gap or state.left_out(state.span(node))
    if isinstance(callee, Function):
        return enter(state, callee, positional, keywords, gap)
    if isinstance(callee, Method):
        return _method(state, node, callee, positional, keywords, gap)
    if isinstance(callee, External):
        if not gap and callee.path in FUNCTIONS:
            found = FUNCTIONS[callee.path](positional, {key: entry.value for key, entry in keywords.items()})
            if found is not None:
                if isinstance(found, (Scalar, Table, Listing)) and found.span is None:
                    found.span = state.span(node)
                return found
        if callee.path == "dict" and len(positional) <= 1:
            return _dictionary(state, node, positional, keywords, gap)
        made = Made(callee.path, positional, keywords, state.span(node), gap)
        state.record(made)
        return made
    return Unknown(
        callee.why if isinstance(callee, Unknown) else f"`{shown(node)}` is known only when it runs", state.span(node)
    )


def _arguments(state: State, scopes: Scopes, node: ast.Call) -> tuple[list[Value], dict[str, Entry], str]:
    """Arguments by position and keyword, and why there may be more."""
    positional: list[Value] = []
    gap = ""
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            items = element_values(evaluate(state, scopes, argument.value))
            if items is None:
                gap = f"`*{shown(argument.value)}` is known only when it runs"
            positional += items or []
        else:
            positional.append(evaluate(state, scopes, argument))
    given = Table()
    for keyword in node.keywords:
        value = evaluate(state, scopes, keyword.value)
        if keyword.arg is None:
            unpack(given, value)
        else:
            given.entries[keyword.arg] = Entry(value, state.span(keyword), state.span(keyword.value))
    keywords = {key: entry for key, entry in given.entries.items() if isinstance(key, str)}
    return positional, keywords, gap or given.open


def enter(state: State, function: Function, positional: list[Value], keywords: dict[str, Entry], gap: str) -> Value:
    """Follow a function of the cell with its parameters bound; `gap` says why they are not known."""
    from smp_advisor.estimators.cells.statements import execute, returned_by

    name = getattr(function.node, "name", "a lambda")
    if state.depth >= MAX_DEPTH:
        return Unknown(f"{name} calls itself too often to be followed")
    scope = _bound(state, function, positional, keywords, gap)
    inner = (*function.scopes, scope)
    state.depth += 1
    try:
        if isinstance(function.node, ast.Lambda):
            return evaluate(state, inner, function.node.body)
        leaving = execute(state, inner, function.node.body)
    finally:
        state.depth -= 1
    return Unknown(f"{name} ends with an error") if leaving == "raise" else returned_by(scope)


def _bound(
    state: State, function: Function, positional: list[Value], keywords: dict[str, Entry], gap: str
) -> dict[str, Value]:
    spec = function.node.args
    names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
    scope: dict[str, Value] = {}
    for name, default in zip(reversed(names), reversed(spec.defaults), strict=False):
        scope[name] = evaluate(state, function.scopes, default)
    for argument, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        if value is not None:
            scope[argument.arg] = evaluate(state, function.scopes, value)
    if gap:
        scope = {name: Unknown(gap) for name in (*names, *(one.arg for one in spec.kwonlyargs))}
    scope.update(zip(names, positional, strict=False))
    extra = Table({}, None, gap)
    accepted = {*names, *(one.arg for one in spec.kwonlyargs)}
    for name, entry in keywords.items():
        if name in accepted:
            scope[name] = entry.value
        else:
            extra.entries[name] = entry
    if spec.vararg is not None:
        scope[spec.vararg.arg] = Listing(positional[len(names) :])
    if spec.kwarg is not None:
        scope[spec.kwarg.arg] = extra
    for name in accepted - scope.keys():
        scope[name] = Unknown(f"{name} is not given")
    return scope


def _dictionary(state: State, node: ast.Call, positional: list[Value], keywords: dict[str, Entry], gap: str) -> Value:
    table = Table({}, state.span(node), gap)
    if positional:
        first = positional[0]
        pairs = first.items if isinstance(first, Listing) else None
        if pairs is not None and all(isinstance(pair, Listing) and len(pair.items) == 2 for pair in pairs):
            first = Table()
            for pair in pairs:
                if isinstance(pair, Listing) and isinstance(pair.items[0], Scalar):
                    first.entries[pair.items[0].value] = Entry(pair.items[1])
        unpack(table, first)
        table.span = None if table.entries and not keywords else table.span
    table.entries.update(keywords)
    return table


def _method(
    state: State, node: ast.Call, method: Method, positional: list[Value], keywords: dict[str, Entry], gap: str
) -> Value:
    owner, name = method.owner, method.name
    found: Value | None = None
    if isinstance(owner, Table):
        found = _table_method(owner, name, positional, keywords, gap)
    elif isinstance(owner, Listing):
        found = _listing_method(owner, name, positional)
    elif isinstance(owner, Scalar) and isinstance(owner.value, str) and name in _TEXT_METHODS and not gap:
        found = _text_method(owner.value, name, positional, keywords)
    if found is not None:
        if isinstance(found, Scalar) and found.span is None:
            found.span = state.span(node)
        return found
    path = f"{owner.path}.{name}" if isinstance(owner, Made) else name
    made = Made(path, positional, keywords, state.span(node), gap)
    state.record(made)
    if isinstance(owner, Unknown):
        return Unknown(owner.why, state.span(node))
    return made


def _table_method(
    owner: Table, name: str, positional: list[Value], keywords: dict[str, Entry], gap: str
) -> Value | None:
    if name == "update":
        for value in positional:
            unpack(owner, value)
        owner.entries.update(keywords)
        owner.open = owner.open or gap
        return Scalar(None)
    if name in ("get", "pop", "setdefault") and positional and isinstance(positional[0], Scalar):
        return _looked_up(owner, name, positional[0].value, positional[1] if len(positional) > 1 else Scalar(None))
    if name == "copy":
        return clone(owner, {})
    if name in ("items", "keys", "values") and not owner.open:
        pairs: list[Value] = []
        for known, entry in owner.entries.items():
            both = {"items": Listing([Scalar(known), entry.value]), "keys": Scalar(known), "values": entry.value}
            pairs.append(both[name])
        return Listing(pairs)
    if name in ("clear", "setdefault", "pop", "popitem"):
        owner.open = "it is changed by what is known only when it runs"
    return None


def _looked_up(owner: Table, name: str, key: object, default: Value) -> Value:
    entry = owner.entries.get(key)
    if entry is None and owner.open:
        return Unknown(owner.open)
    if entry is None:
        if name == "setdefault":
            owner.entries[key] = Entry(default)
        return default
    if name == "pop":
        del owner.entries[key]
    return entry.value


def _listing_method(owner: Listing, name: str, positional: list[Value]) -> Value | None:
    if name == "append" and len(positional) == 1:
        owner.items.append(positional[0])
        return Scalar(None)
    if name == "extend" and positional and (items := element_values(positional[0])) is not None:
        owner.items.extend(items)
        return Scalar(None)
    return clone(owner, {}) if name == "copy" else None


def _text_method(text: str, name: str, positional: list[Value], keywords: dict[str, Entry]) -> Value | None:
    try:
        arguments = [plain(value) for value in positional]
        named = {key: plain(entry.value) for key, entry in keywords.items()}
    except LookupError:
        return None
    if name == "format" and (len(text) > MAX_ITEMS or any(sign in text for sign in (":", "!", "[", "."))):
        # Width and attribute look-ups are more than a job's name needs.
        return None
    try:
        result = getattr(text, name)(*arguments, **named)
    except (TypeError, ValueError, LookupError):
        return None
    if isinstance(result, (list, tuple)):
        return Listing([Scalar(part) for part in result])
    return Scalar(result) if not isinstance(result, str) or len(result) <= 4 * MAX_ITEMS else None
