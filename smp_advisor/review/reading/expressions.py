"""Evaluate expressions, and record the calls in them."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.review.reading.data import (
    MAX_ITEMS,
    compare,
    compute,
    distinct,
    element_values,
    formatted,
    negated,
    shown,
    truth,
    unpack,
    within,
)
from smp_advisor.review.reading.places import attribute, bind_target, element, item
from smp_advisor.review.reading.run import Frame
from smp_advisor.review.reading.trace import Guard, Selection, Use
from smp_advisor.review.reading.values import (
    Collection,
    Constant,
    Entry,
    External,
    Function,
    Item,
    Mapping,
    Operation,
    Scope,
    StepOutput,
    Unknown,
    Value,
    choice,
    each,
    options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.review.reading.run import Run


def evaluate(run: Run, frame: Frame, node: ast.expr | None) -> Value:
    """Return the value of `node`. Calls in it are recorded, and functions of the files that are read are followed."""
    if node is None:
        return Constant(None)
    run.count()
    handler = _HANDLERS.get(type(node))
    if handler is None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                evaluate(run, frame, child)
        return Unknown()
    value = handler(run, frame, node)
    if type(value) is Constant and value.span is None and type(node) in _MAKING:
        value.span = run.span(frame, node)
    return within(value) if type(node) in _FILLING else value


def _name(run: Run, frame: Frame, node: ast.Name) -> Value:
    value = frame.scope.read(node.id)
    # A class that another cell imports.
    return External(node.id) if run.computes and isinstance(value, Unknown) and node.id[:1].isupper() else value


def _attribute(run: Run, frame: Frame, node: ast.Attribute) -> Value:
    owner = evaluate(run, frame, node.value)
    inherited = _inherited(frame, node)
    return inherited or each(owner, lambda option: attribute(run, frame, option, node.attr, node))


def _inherited(frame: Frame, node: ast.Attribute) -> Function | None:
    """Return the method of ``super().method`` in the files that are read, bound to the object at hand."""
    function, called = frame.function, getattr(node.value, "func", None)
    if getattr(called, "id", "") != "super" or function is None or function.home is None:
        return None
    lineage = list(getattr(function.owner, "cls", function.home).lineage)
    after = lineage[lineage.index(function.home) + 1 :] if function.home in lineage else []
    member = next((cls.members[node.attr] for cls in after if node.attr in cls.members), None)
    method = member if isinstance(member, Function) and not member.is_property else None
    return replace(method, owner=function.owner) if method is not None else None


def _subscript(run: Run, frame: Frame, node: ast.Subscript) -> Value:
    owner = evaluate(run, frame, node.value)
    key = evaluate(run, frame, node.slice)
    if isinstance(key, Operation) and key.operator == ":" and isinstance(node.slice, ast.Slice):
        _selects(run, frame, node.slice.lower, key.operands[0], out_of=key.operands[2])
    return choice(*(item(option, key) for option in options(owner)))


def _selects(run: Run, frame: Frame, node: ast.expr | None, value: Value, *, out_of: Value) -> None:
    """Record a slice with a step, or a comparison with a remainder."""
    if node is not None and not (isinstance(out_of, Constant) and out_of.value is None):
        run.trace.selections.append(Selection(node, frame.module, value, out_of, tuple(run.functions)))


def _sequence(run: Run, frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items: list[Value] = []
    unknown: list[Value] = []
    for part in node.elts:
        value = evaluate(run, frame, part.value if isinstance(part, ast.Starred) else part)
        inner = element_values(value) if isinstance(part, ast.Starred) else [value]
        items += [value] if inner is None else inner
        unknown += [value] if inner is None else []
    if unknown:
        return Operation("*", tuple(items))
    return distinct(items) if isinstance(node, ast.Set) else Collection(items, run.span(frame, node))


def _mapping(run: Run, frame: Frame, node: ast.Dict) -> Value:
    mapping = Mapping({}, run.span(frame, node), frame.module.source.left_out(node))
    for key, part in zip(node.keys, node.values, strict=True):
        value = evaluate(run, frame, part)
        if key is None:
            unpack(mapping, value)
            continue
        name = evaluate(run, frame, key)
        if not isinstance(name, Constant):
            mapping.open = f"the key `{shown(key)}` is computed"
            continue
        value_span, key_span = run.span(frame, part), run.span(frame, key)
        both = type(key_span)(key_span.start, value_span.end) if key_span and value_span else None
        mapping.entries[name.value] = Entry(value, both, value_span, key_span)
    return mapping


def _binary(run: Run, frame: Frame, node: ast.BinOp) -> Value:
    left, right = evaluate(run, frame, node.left), evaluate(run, frame, node.right)
    if not (isinstance(node.op, ast.Mod) and isinstance(left, Constant) and isinstance(left.value, str)):
        _use(run, frame, node.left, left, "arithmetic")
        _use(run, frame, node.right, right, "arithmetic")
    elif re.search(r"%[-+ #0-9.]*[dfeg]", left.value):
        parts = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        for part, value in zip(parts, right.items if isinstance(right, Collection) else (right,), strict=False):
            _use(run, frame, part, value, "number formatting")
    return compute(node.op, left, right)


def _use(run: Run, frame: Frame, node: ast.expr, value: Value, how: str) -> None:
    for option in options(value):
        if isinstance(option, StepOutput):
            run.trace.uses.append(Use(node, frame.module, option, how))


def _boolean(run: Run, frame: Frame, node: ast.BoolOp) -> Value:
    """Later operands run only if the earlier ones let them."""
    stops = isinstance(node.op, ast.Or)
    undecided: list[Value] = []
    depth = len(run.guards)
    value: Value = Constant(None)
    for operand in node.values:
        value = evaluate(run, frame, operand)
        decided = truth(value)
        if decided is None:
            undecided.append(value)
            run.guards.append(Guard(operand, value, not stops))
        elif decided == stops:
            break
    del run.guards[depth:]
    if not undecided or undecided == [value]:
        return value
    return Operation(type(node.op).__name__, (*undecided, *([value] if undecided[-1] is not value else [])))


def _compare(run: Run, frame: Frame, node: ast.Compare) -> Value:
    nodes = [node.left, *node.comparators]
    values = [evaluate(run, frame, part) for part in nodes]
    if not any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
        for part, value in zip(nodes, values, strict=True):
            _use(run, frame, part, value, "a comparison")
    if len(values) == 2 and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        for remainder, number, place in ((values[0], values[1], nodes[1]), (values[1], values[0], nodes[0])):
            if isinstance(remainder, Operation) and remainder.operator == "Mod":
                _selects(run, frame, place, number, out_of=remainder)
    results = [compare(op, *pair) for op, pair in zip(node.ops, itertools.pairwise(values), strict=True)]
    if False in results:
        return Constant(value=False)
    return Operation(type(node.ops[0]).__name__, tuple(values)) if None in results else Constant(value=True)


def _conditional(run: Run, frame: Frame, node: ast.IfExp) -> Value:
    test = evaluate(run, frame, node.test)
    decided = truth(test)
    if decided is not None:
        return evaluate(run, frame, node.body if decided else node.orelse)
    why = run.trace.decide(node.test, test)
    with run.under(Guard(node.test, test, holds=True)):
        body = evaluate(run, frame, node.body)
    with run.under(Guard(node.test, test, holds=False)):
        orelse = evaluate(run, frame, node.orelse)
    return choice(body, orelse, why=why)


def _text(run: Run, frame: Frame, node: ast.JoinedStr) -> Value:
    values: list[Value] = []
    texts: list[str | None] = []
    for part in node.values:
        if not isinstance(part, ast.FormattedValue):
            values.append(evaluate(run, frame, part))
            texts.append(formatted(values[-1], -1, Constant("")))
            continue
        value = evaluate(run, frame, part.value)
        spec: Value = Constant("")
        if part.format_spec is not None:
            spec = evaluate(run, frame, part.format_spec)
            _use(run, frame, part.value, value, "number formatting")
        values.append(value)
        texts.append(formatted(value, part.conversion, spec))
    text = [text for text in texts if text is not None]
    if len(text) == len(texts) and sum(map(len, text)) <= 4 * MAX_ITEMS:
        return Constant("".join(text))
    return Operation("format", tuple(values))


def _comprehension(run: Run, frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    inner = Frame(frame.module, Scope(frame.scope), frame.function)
    mapping, items = Mapping({}, run.span(frame, node)), Collection([], run.span(frame, node))
    parts: list[Value] = []
    for computed in _rounds(run, inner, node.generators, parts):
        key = evaluate(run, inner, node.key) if isinstance(node, ast.DictComp) else Constant(None)
        value = evaluate(run, inner, node.value if isinstance(node, ast.DictComp) else node.elt)
        if isinstance(node, ast.DictComp) and not (computed and isinstance(key, Constant)):
            return Mapping({}, open=f"its keys are computed in line {frame.module.source.locate(node.lineno)[1]}")
        if not computed:
            return Operation("comprehension", (value, *parts))
        if isinstance(key, Constant):
            mapping.entries[key.value] = Entry(value)
        items.items.append(value)
    if isinstance(node, ast.SetComp):
        return distinct(items.items)
    return mapping if isinstance(node, ast.DictComp) else items


def _rounds(run: Run, inner: Frame, generators: list[ast.comprehension], parts: list[Value]) -> Iterator[bool]:
    """Bind the names of each round. False is one round that stands for all of them, which are not known."""
    if not generators:
        yield True
        return
    first, *inner_generators = generators
    over = evaluate(run, inner, first.iter)
    parts.append(over)
    items = element_values(over) if run.computes else None
    for value in items if items is not None and len(items) <= MAX_ITEMS else [None]:
        bind_target(run, inner, first.target, element(over) if value is None else value)
        tests = [evaluate(run, inner, test) for test in first.ifs]
        truths = [truth(test) for test in tests]
        if value is None or None in truths:
            parts += tests
            next(_rounds(run, inner, inner_generators, parts), None)
            yield False
            return
        if all(truths):
            yield from _rounds(run, inner, inner_generators, parts)


def _lambda(run: Run, frame: Frame, node: ast.Lambda) -> Value:
    function = Function(node, frame.module, frame.scope)
    run.trace.functions.append(function)
    return function


def _walrus(run: Run, frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(run, frame, node.value)
    run.bind(frame, node.target.id, value)
    return value


def _yield(run: Run, frame: Frame, node: ast.Yield | ast.YieldFrom) -> Value:
    value = evaluate(run, frame, node.value)
    body = set(ast.walk(frame.function.node)) if frame.function is not None else set()
    # A loop over the generator reads this: all that it passes on, and nothing that it selects.
    source = value.owner if isinstance(value, Item) and value.key is None else value
    passes = isinstance(node, ast.YieldFrom) or source is not value
    passes &= not any(guard.test in body for guard in run.guards)
    frame.returned.append(source if passes else Unknown("it comes from a generator"))
    return Unknown("it is sent to a generator")


_HANDLERS: dict[type[ast.AST], Callable[[Run, Frame, Any], Value]] = {
    ast.Name: _name,
    ast.Constant: lambda run, frame, node: Constant(node.value, run.span(frame, node)),
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: lambda run, frame, node: Operation(
        ":", tuple(evaluate(run, frame, part) for part in (node.lower, node.upper, node.step))
    ),
    ast.Dict: _mapping,
    ast.Call: lambda run, frame, node: run.call(frame, node),
    ast.Lambda: _lambda,
    ast.BinOp: _binary,
    ast.UnaryOp: lambda run, frame, node: negated(node.op, evaluate(run, frame, node.operand)),
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.JoinedStr: _text,
    ast.NamedExpr: _walrus,
    **dict.fromkeys((ast.Starred, ast.Await), lambda run, frame, node: evaluate(run, frame, node.value)),
    **dict.fromkeys((ast.Tuple, ast.List, ast.Set), _sequence),
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp), _comprehension),
    **dict.fromkeys((ast.Yield, ast.YieldFrom), _yield),
}
_MAKING = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.Call)
"""Expressions that make a value of their own."""
_FILLING = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
"""Expressions that make a container of other values."""
