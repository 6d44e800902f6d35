"""Follow statements in the order in which they would run, each branch once."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.builtins import step_mark
from smp_advisor.reading.calls import enter
from smp_advisor.reading.expressions import element, evaluate
from smp_advisor.reading.imports import bind_import
from smp_advisor.reading.scope import Scope
from smp_advisor.reading.trace import Guard, Iteration, Store, Use
from smp_advisor.reading.values import (
    Class,
    Collection,
    Constant,
    External,
    Function,
    Instance,
    Item,
    Mapping,
    Operation,
    StepMark,
    StepOutput,
    Unknown,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.reading.run import Frame, Run

__all__ = ["bind_target", "execute", "follow_the_rest"]

_LEAVING = ("sys.exit", "exit", "quit", "os._exit")


def execute(run: Run, frame: Frame, statements: list[ast.stmt]) -> bool:
    """Follow `statements`; True where they leave the block (return, raise, break, continue)."""
    return any(_execute(run, frame, statement) for statement in statements)


def follow_the_rest(run: Run) -> None:
    """Follow what running the file does not reach: functions that something unseen may call."""
    for function in tuple(run.trace.functions):
        # The compiler's runtime calls this one, once a worker.
        if getattr(function.node, "name", "") == "_mp_fn" and not run.followed[function.node]:
            enter(run, function, {})
    run.reached = False
    position = 0
    while position < len(run.trace.functions):
        function = run.trace.functions[position]
        position += 1
        if function.module.entry and not run.followed[function.node]:
            owner: dict[str, Value] = {}
            spec = function.node.args
            if function.home is not None and not function.static and (spec.posonlyargs or spec.args):
                name = (*spec.posonlyargs, *spec.args)[0].arg
                made = [instance for instance in run.trace.instances if instance.cls is function.home]
                if made:
                    owner[name] = made[0]
            enter(run, function, owner)


def bind_target(run: Run, frame: Frame, target: ast.expr, value: Value) -> None:
    """Assign `value` to a name, attribute, subscript or a tuple of them."""
    if isinstance(target, ast.Name):
        frame.scope.bind(target.id, value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for position, inner in enumerate(target.elts):
            if isinstance(inner, ast.Starred):
                bind_target(run, frame, inner.value, Unknown())
            else:
                bind_target(run, frame, inner, _part(value, position, len(target.elts)))
    elif isinstance(target, ast.Attribute):
        _store(run, frame, target, value)
    elif isinstance(target, ast.Subscript):
        owner = evaluate(run, frame, target.value)
        key = evaluate(run, frame, target.slice)
        for option in options(owner):
            if isinstance(option, Mapping) and isinstance(key, Constant):
                _put(run, option.entries, str(key.value), value)
            elif isinstance(option, Mapping):
                option.complete = False


def _store(run: Run, frame: Frame, target: ast.Attribute, value: Value) -> None:
    for option in options(evaluate(run, frame, target.value)):
        run.order += 1
        run.trace.stores.append(Store(target, frame.module, option, value, tuple(run.contexts), run.order))
        if isinstance(option, Instance):
            _put(run, option.attributes, target.attr, value)


def _put(run: Run, names: dict[str, Value], name: str, value: Value) -> None:
    """Bind, or add to what it may be where a condition decides."""
    names[name] = choice(names[name], value) if run.guards and name in names else value


def _part(value: Value, position: int, count: int) -> Value:
    parts: list[Value] = []
    for option in options(value):
        if isinstance(option, Collection) and len(option.items) == count:
            parts.append(option.items[position])
        elif isinstance(option, StepOutput):
            parts.append(StepOutput(_part(option.of, position, count), option.call))
        else:
            parts.append(Item(option, Constant(position)))
    return choice(*parts)


def _execute(run: Run, frame: Frame, node: ast.stmt) -> bool:
    handler = _HANDLERS.get(type(node))
    return bool(handler(run, frame, node)) if handler is not None else False


def _expression(run: Run, frame: Frame, node: ast.Expr) -> bool:
    before = len(run.trace.calls)
    evaluate(run, frame, node.value)
    for call in run.trace.calls[before:]:
        if call.node is node.value:
            call.discarded = True
            if call.name in _LEAVING:
                return True
    return False


def _assign(run: Run, frame: Frame, node: ast.Assign) -> None:
    value = evaluate(run, frame, node.value)
    for target in node.targets:
        bind_target(run, frame, target, value)


def _annotated(run: Run, frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        bind_target(run, frame, node.target, evaluate(run, frame, node.value))


def _augmented(run: Run, frame: Frame, node: ast.AugAssign) -> None:
    value = evaluate(run, frame, node.value)
    for option in options(value):
        if isinstance(option, StepOutput):
            run.trace.uses.append(Use(node.value, frame.module, option, "arithmetic"))
    before = evaluate(run, frame, node.target)
    if isinstance(node.target, ast.Name):
        frame.scope.bind(node.target.id, Operation(type(node.op).__name__, (before, value)))


def _function(run: Run, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    closure = frame.scope
    while closure.is_class and closure.parent is not None:
        closure = closure.parent
    function = Function(node, frame.module, closure)
    run.trace.functions.append(function)
    is_property = False
    for decorator in reversed(node.decorator_list):
        value = evaluate(run, frame, decorator)
        function.step = function.step or step_mark(value, decorator) or _mark_by(run, value, function)
        name = value.path if isinstance(value, External) else ""
        function.static = function.static or name == "staticmethod"
        is_property = is_property or name in ("property", "functools.cached_property")
    if is_property:
        frame.scope.bind(node.name, Unknown())
    else:
        frame.scope.bind(node.name, function)


def _mark_by(run: Run, decorator: Value, function: Function) -> StepMark | None:
    """The mark that a decorator of the script's own puts on a function: ``def step(f): return smp.step(f)``."""
    for option in options(decorator):
        if isinstance(option, Function) and option.step is None and run.follows(option):
            spec = option.node.args
            names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
            returned = enter(run, option, {names[0]: function}) if len(names) == 1 else Unknown()
            for made in options(returned):
                if isinstance(made, Function) and made.node is function.node and made.step is not None:
                    return made.step
    return None


def _class(run: Run, frame: Frame, node: ast.ClassDef) -> None:
    from smp_advisor.reading.run import Frame as NewFrame

    bases = tuple(evaluate(run, frame, base) for base in node.bases)
    scope = Scope(frame.scope, is_class=True)
    made = Class(node, frame.module, scope, bases, scope.names)
    execute(run, NewFrame(frame.module, scope), node.body)
    for member in scope.names.values():
        if isinstance(member, Function):
            member.home = made
    run.trace.classes.append(made)
    frame.scope.bind(node.name, made)


def _return(run: Run, frame: Frame, node: ast.Return) -> bool:
    frame.returned.append(evaluate(run, frame, node.value))
    return True


def _leave(run: Run, frame: Frame, node: ast.stmt) -> bool:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            evaluate(run, frame, child)
    return True


def _if(run: Run, frame: Frame, node: ast.If) -> bool:
    test = evaluate(run, frame, node.test)
    if _is_main(node.test) and not frame.module.entry:
        return execute(run, frame, node.orelse)
    if isinstance(test, Constant):  # `if True:` and what amounts to it
        return execute(run, frame, node.body if test.value else node.orelse)
    if _is_main(node.test):
        return execute(run, frame, node.body)
    before = dict(frame.scope.names)
    depth = len(run.guards)
    run.guards.append(Guard(node.test, test, holds=True))
    body_leaves = execute(run, frame, node.body)
    del run.guards[depth:]
    after_body = frame.scope.names.copy()
    _restore(frame, before)
    run.guards.append(Guard(node.test, test, holds=False))
    other_leaves = execute(run, frame, node.orelse)
    del run.guards[depth:]
    if body_leaves and other_leaves:
        return True
    if body_leaves or other_leaves:
        # What follows runs only in the branch that stayed.
        run.guards.append(Guard(node.test, test, holds=other_leaves))
        if other_leaves:
            _restore(frame, after_body)
        return False
    _merge(frame, after_body)
    return False


def _is_main(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "__main__"
    )


def _restore(frame: Frame, names: dict[str, Value]) -> None:
    frame.scope.names.clear()
    frame.scope.names.update(names)


def _merge(frame: Frame, other: dict[str, Value]) -> None:
    names = frame.scope.names
    for name, value in other.items():
        if name not in names:
            names[name] = value
        elif names[name] is not value:
            names[name] = choice(value, names[name])


def _for(run: Run, frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    over = evaluate(run, frame, node.iter)
    before = dict(frame.scope.names)
    bind_target(run, frame, node.target, element(over))
    _loop(run, frame, node, before, over)


def _while(run: Run, frame: Frame, node: ast.While) -> None:
    evaluate(run, frame, node.test)
    _loop(run, frame, node, dict(frame.scope.names), Unknown())


def _loop(
    run: Run, frame: Frame, node: ast.For | ast.AsyncFor | ast.While, before: dict[str, Value], over: Value
) -> None:
    run.loops.append(node)
    first = run.order + 1
    depth = len(run.guards)
    execute(run, frame, node.body)
    del run.guards[depth:]
    run.trace.iterations.append(Iteration(node, frame.module, over, (first, run.order)))
    run.loops.pop()
    _merge(frame, before)
    execute(run, frame, node.orelse)


def _with(run: Run, frame: Frame, node: ast.With | ast.AsyncWith) -> bool:
    depth = len(run.contexts)
    for item in node.items:
        value = evaluate(run, frame, item.context_expr)
        run.contexts.append(value)
        if item.optional_vars is not None:
            bind_target(run, frame, item.optional_vars, value)
    leaves = execute(run, frame, node.body)
    del run.contexts[depth:]
    return leaves


def _try(run: Run, frame: Frame, node: ast.Try) -> bool:
    before = dict(frame.scope.names)
    leaves = execute(run, frame, node.body)
    if not leaves:
        execute(run, frame, node.orelse)
    for handler in node.handlers:
        after = frame.scope.names.copy()
        _restore(frame, before)
        depth = len(run.guards)
        handler_leaves = execute(run, frame, handler.body)
        del run.guards[depth:]
        if handler_leaves:
            _restore(frame, after)
        else:
            _merge(frame, after)
            leaves = False
    return execute(run, frame, node.finalbody) or leaves


def _match(run: Run, frame: Frame, node: ast.Match) -> None:
    value = evaluate(run, frame, node.subject)
    before = dict(frame.scope.names)
    merged: dict[str, Value] = dict(before)
    for case in node.cases:
        _restore(frame, before)
        with run.under(Guard(node.subject, value, holds=True)):
            if not execute(run, frame, case.body):
                _merge(frame, merged)
                merged = frame.scope.names.copy()
    _restore(frame, merged)


def _outer(_run: Run, frame: Frame, node: ast.Global | ast.Nonlocal) -> None:
    frame.scope.outer |= frozenset(node.names)


def _import(run: Run, frame: Frame, node: ast.Import | ast.ImportFrom) -> None:
    bind_import(run, frame, node)


def _assert(run: Run, frame: Frame, node: ast.Assert) -> None:
    evaluate(run, frame, node.test)


_HANDLERS: dict[type[ast.stmt], Callable[..., bool | None]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Return: _return,
    ast.Raise: _leave,
    ast.Break: _leave,
    ast.Continue: _leave,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.Match: _match,
    ast.Global: _outer,
    ast.Nonlocal: _outer,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Assert: _assert,
}
