"""Work out what an expression stands for, and note the calls in it."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.command_lines import field_default, option_of
from smp_advisor.reading.scope import Scope
from smp_advisor.reading.trace import Guard, Selection, Use
from smp_advisor.reading.values import (
    Choice,
    Class,
    Collection,
    Constant,
    External,
    Function,
    Instance,
    Item,
    LocalModule,
    Mapping,
    Member,
    Operation,
    Result,
    StepOutput,
    Unknown,
    Value,
    choice,
    options,
    something,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.reading.run import Frame, Run

__all__ = ["attribute", "element", "evaluate"]

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
}
_TENSOR_ATTRIBUTES = frozenset(
    [
        "item",
        "backward",
        "detach",
        "cpu",
        "cuda",
        "mean",
        "sum",
        "numpy",
        "tolist",
        "to",
        "float",
        "double",
        "half",
        "argmax",
        "size",
        "shape",
        "view",
        "clone",
        "data",
        "dim",
        "reshape",
        "flatten",
        "max",
        "min",
        "abs",
        "sqrt",
        "exp",
        "log",
    ]
)
_LARGEST = 10**18


def evaluate(run: Run, frame: Frame, node: ast.expr | None) -> Value:
    """What `node` stands for; calls in it are recorded, functions of the script followed."""
    if node is None:
        return Constant(None)
    handler = _HANDLERS.get(type(node))
    if handler is not None:
        return handler(run, frame, node)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            evaluate(run, frame, child)
    return Unknown()


def attribute(run: Run, frame: Frame, owner: Value, name: str, node: ast.expr) -> Value:
    """The attribute `name` of one possible owner, as `node` reads it."""
    if isinstance(owner, External):
        from smp_advisor.reading.names import canonical

        return External(canonical(f"{owner.path}.{name}"))
    if isinstance(owner, LocalModule):
        return owner.module.scope.find(name) or Unknown()
    if isinstance(owner, Instance):
        if name in owner.attributes:
            return owner.attributes[name]
        return _bound(field_default(owner.cls.find(name)), owner) or Member(owner, name)
    if isinstance(owner, Class):
        return field_default(owner.find(name)) or Member(owner, name)
    if isinstance(owner, StepOutput):
        if name in _TENSOR_ATTRIBUTES:
            run.trace.uses.append(Use(node, frame.module, owner, f".{name}"))
        return Member(owner, name)
    if isinstance(owner, Mapping) and name in owner.entries:
        return owner.entries[name]
    found = option_of(run, owner, name)
    return found if found is not None else Member(owner, name)


def element(value: Value) -> Value:
    """What iterating over `value` gives."""
    if isinstance(value, Collection) and value.items:
        return choice(*value.items)
    if isinstance(value, StepOutput):
        return StepOutput(element(value.of), value.call)
    if isinstance(value, Choice):
        return choice(*(element(option) for option in value.alternatives))
    if isinstance(value, Result) and value.call.arguments:
        first = value.call.arguments[0]
        if value.call.name == "enumerate":
            return Collection((Unknown(), element(first)))
        if value.call.name == "zip":
            return Collection(tuple(element(argument) for argument in value.call.arguments))
        if value.call.name in ("tqdm.tqdm", "tqdm.auto.tqdm", "iter", "reversed", "itertools.islice", "tqdm"):
            return element(first)
    return Item(value, None)


def _bound(found: Value | None, owner: Instance) -> Value | None:
    if isinstance(found, Function) and not found.static:
        return Function(found.node, found.module, found.scope, owner, found.step, home=found.home)
    return found


def _name(_run: Run, frame: Frame, node: ast.Name) -> Value:
    return frame.scope.read(node.id)


def _constant(_run: Run, _frame: Frame, node: ast.Constant) -> Value:
    return Constant(node.value)


def _attribute(run: Run, frame: Frame, node: ast.Attribute) -> Value:
    owner = evaluate(run, frame, node.value)
    return choice(*(attribute(run, frame, option, node.attr, node) for option in something(owner)))


def _subscript(run: Run, frame: Frame, node: ast.Subscript) -> Value:
    owner = evaluate(run, frame, node.value)
    key = evaluate(run, frame, node.slice)
    if isinstance(key, Operation) and key.operator == ":" and isinstance(node.slice, ast.Slice):
        _selects(run, frame, node.slice.lower, key.operands[0], out_of=key.operands[2])
    return choice(*(_item(option, key) for option in options(owner)))


def _selects(run: Run, frame: Frame, node: ast.expr | None, value: Value, *, out_of: Value) -> None:
    """Record a slice with a step, or a comparison with a remainder."""
    if node is not None and not (isinstance(out_of, Constant) and out_of.value is None):
        run.trace.selections.append(Selection(node, frame.module, value, out_of, tuple(run.functions)))


def _item(owner: Value, key: Value) -> Value:
    if isinstance(owner, Mapping) and isinstance(key, Constant) and str(key.value) in owner.entries:
        return owner.entries[str(key.value)]
    if isinstance(owner, Collection) and isinstance(key, Constant) and isinstance(key.value, int):
        position = key.value
        if -len(owner.items) <= position < len(owner.items):
            return owner.items[position]
    if isinstance(owner, StepOutput):
        return StepOutput(_item(owner.of, key), owner.call)
    return Item(owner, key)


def _slice(run: Run, frame: Frame, node: ast.Slice) -> Value:
    return Operation(":", tuple(evaluate(run, frame, part) for part in (node.lower, node.upper, node.step)))


def _sequence(run: Run, frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items = [evaluate(run, frame, item) for item in node.elts]
    if any(isinstance(item, ast.Starred) for item in node.elts):
        return Operation("*", tuple(items))
    return Collection(tuple(items))


def _starred(run: Run, frame: Frame, node: ast.Starred) -> Value:
    return evaluate(run, frame, node.value)


def _mapping(run: Run, frame: Frame, node: ast.Dict) -> Value:
    entries: dict[str, Value] = {}
    complete = True
    for key, item in zip(node.keys, node.values, strict=True):
        value = evaluate(run, frame, item)
        if key is None:
            if isinstance(value, Mapping):
                entries |= value.entries
                complete = complete and value.complete
            else:
                complete = False
            continue
        known = evaluate(run, frame, key)
        if isinstance(known, Constant):
            entries[str(known.value)] = value
        else:
            complete = False
    return Mapping(entries, complete)


def _binary(run: Run, frame: Frame, node: ast.BinOp) -> Value:
    left, right = evaluate(run, frame, node.left), evaluate(run, frame, node.right)
    if not (isinstance(node.op, ast.Mod) and isinstance(left, Constant) and isinstance(left.value, str)):
        _use(run, frame, node.left, left, "arithmetic")
        _use(run, frame, node.right, right, "arithmetic")
    elif re.search(r"%[-+ #0-9.]*[dfeg]", left.value):
        parts = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        for part, value in zip(parts, right.items if isinstance(right, Collection) else (right,), strict=False):
            _use(run, frame, part, value, "number formatting")
    return _compute(node.op, left, right)


def _compute(op: ast.operator, left: Value, right: Value) -> Value:
    if isinstance(left, Constant) and isinstance(right, Constant) and type(op) in _ARITHMETIC:
        numbers = isinstance(left.value, (int, float)) and isinstance(right.value, (int, float))
        if numbers and abs(left.value) < _LARGEST and abs(right.value) < _LARGEST:
            try:
                return Constant(_ARITHMETIC[type(op)](left.value, right.value))
            except ArithmeticError:
                return Unknown()
        if isinstance(op, ast.Add) and isinstance(left.value, str) and isinstance(right.value, str):
            return Constant(left.value + right.value)
    return Operation(type(op).__name__, (left, right))


def _use(run: Run, frame: Frame, node: ast.expr, value: Value, how: str) -> None:
    for option in options(value):
        if isinstance(option, StepOutput):
            run.trace.uses.append(Use(node, frame.module, option, how))


def _unary(run: Run, frame: Frame, node: ast.UnaryOp) -> Value:
    value = evaluate(run, frame, node.operand)
    if isinstance(value, Constant) and isinstance(value.value, (int, float)):
        if isinstance(node.op, ast.USub):
            return Constant(-value.value)
        if isinstance(node.op, ast.Not):
            return Constant(not value.value)
    return Operation(type(node.op).__name__, (value,))


def _boolean(run: Run, frame: Frame, node: ast.BoolOp) -> Value:
    """Later operands run only where the earlier ones let them."""
    values = [evaluate(run, frame, node.values[0])]
    depth = len(run.guards)
    for earlier, later in zip(node.values, node.values[1:], strict=False):
        run.guards.append(Guard(earlier, values[-1], isinstance(node.op, ast.And)))
        values.append(evaluate(run, frame, later))
    del run.guards[depth:]
    return Operation(type(node.op).__name__, tuple(values))


def _compare(run: Run, frame: Frame, node: ast.Compare) -> Value:
    values = [evaluate(run, frame, node.left)]
    nodes = [node.left, *node.comparators]
    values += [evaluate(run, frame, comparator) for comparator in node.comparators]
    if not any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
        for part, value in zip(nodes, values, strict=True):
            _use(run, frame, part, value, "a comparison")
    if len(values) == 2 and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        for remainder, number, place in ((values[0], values[1], nodes[1]), (values[1], values[0], nodes[0])):
            if isinstance(remainder, Operation) and remainder.operator == "Mod":
                _selects(run, frame, place, number, out_of=remainder)
    return Operation(type(node.ops[0]).__name__, tuple(values))


def _conditional(run: Run, frame: Frame, node: ast.IfExp) -> Value:
    test = evaluate(run, frame, node.test)
    with run.under(Guard(node.test, test, holds=True)):
        body = evaluate(run, frame, node.body)
    with run.under(Guard(node.test, test, holds=False)):
        other = evaluate(run, frame, node.orelse)
    return choice(body, other)


def _text(run: Run, frame: Frame, node: ast.JoinedStr) -> Value:
    parts: list[Value] = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = evaluate(run, frame, part.value)
            if part.format_spec is not None:
                _use(run, frame, part.value, value, "number formatting")
            parts.append(value)
    return Operation("format", tuple(parts))


def _comprehension(run: Run, frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    from smp_advisor.reading.run import Frame as NewFrame
    from smp_advisor.reading.statements import bind_target

    inner = NewFrame(frame.module, Scope(frame.scope), frame.function)
    conditions: list[Value] = []
    sources: list[Value] = []
    for generator in node.generators:
        over = evaluate(run, inner, generator.iter)
        sources.append(over)
        bind_target(run, inner, generator.target, element(over))
        conditions += [evaluate(run, inner, test) for test in generator.ifs]
    if isinstance(node, ast.DictComp):
        evaluate(run, inner, node.key)
        evaluate(run, inner, node.value)
        return Mapping({}, complete=False)
    return Operation("comprehension", (evaluate(run, inner, node.elt), *sources, *conditions))


def _lambda(run: Run, frame: Frame, node: ast.Lambda) -> Value:
    function = Function(node, frame.module, frame.scope)
    run.trace.functions.append(function)
    return function


def _walrus(run: Run, frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(run, frame, node.value)
    frame.scope.bind(node.target.id, value)
    return value


def _await(run: Run, frame: Frame, node: ast.Await) -> Value:
    return evaluate(run, frame, node.value)


def _call(run: Run, frame: Frame, node: ast.Call) -> Value:
    from smp_advisor.reading.calls import call

    return call(run, frame, node)


_HANDLERS: dict[type[ast.expr], Callable[[Run, Frame, Any], Value]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Tuple: _sequence,
    ast.List: _sequence,
    ast.Set: _sequence,
    ast.Starred: _starred,
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
