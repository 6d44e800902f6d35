"""Follow statements in the order in which they would run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.builtins import step_mark
from smp_advisor.review.reading.data import MAX_ITEMS, compare, compute, element_values, truth
from smp_advisor.review.reading.outside import LEAVING, bind_import, is_command
from smp_advisor.review.reading.places import bind_target, element, set_attribute
from smp_advisor.review.reading.run import ABSENT, Changes, Frame, joined
from smp_advisor.review.reading.trace import Departure, Guard, Iteration, Use
from smp_advisor.review.reading.values import (
    Class,
    Collection,
    Constant,
    External,
    Function,
    Mapping,
    Operation,
    Reason,
    Scope,
    StepMark,
    StepOutput,
    Unknown,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.review.reading.run import Leaving, Run


_STEPS_OF_A_BRANCH = 50
"""Steps that take as long as joining two branches."""


def execute(run: Run, frame: Frame, statements: list[ast.stmt]) -> Leaving:
    """Follow `statements`. Returns how they leave the block, if they surely do."""
    for statement in statements:
        run.count()
        handler = _HANDLERS.get(type(statement))
        leaving = handler(run, frame, statement) if handler is not None else None
        if leaving is not None:
            if leaving == "raise" and frame.module.entry and not (run.doubts or run.functions or run.stopped):
                run.stopped = (statement.lineno, "it ends there with an error")
            return leaving
    return None


def follow_the_rest(run: Run, concerns: Callable[[Function], bool]) -> None:
    """Follow functions that the file does not call, because other code can call them."""
    run.reached = False
    position = 0
    while position < len(run.trace.functions):
        function = run.trace.functions[position]
        position += 1
        if function.module.entry and not run.followed[function.node] and concerns(function):
            objects = [instance for instance in run.trace.instances if instance.cls is function.home]
            names = function.positional[:1] if not function.static else []
            run.enter(function, dict(zip(names, objects, strict=False)))


def _expression(run: Run, frame: Frame, node: ast.Expr) -> Leaving:
    before = len(run.trace.calls)
    run.evaluate(frame, node.value)
    for call in run.trace.calls[before:]:
        if call.node is node.value and call.name in LEAVING:
            return "raise"
    return None


def _assign(run: Run, frame: Frame, node: ast.Assign | ast.AnnAssign) -> None:
    if node.value is not None:
        value = run.evaluate(frame, node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            bind_target(run, frame, target, _or_unknown(run, frame, target, value), node.value)


def _or_unknown(run: Run, frame: Frame, target: ast.expr, value: Value) -> Value:
    """Return a number or flag of the module that functions set with ``global``, at a time that is not known."""
    if run.computes or frame.scope is not frame.module.scope or not isinstance(value, Constant):
        return value
    shared = {name for node in frame.module.all(ast.Global) for name in node.names}
    return choice(value, Unknown("a function sets it")) if getattr(target, "id", "") in shared else value


def _augmented(run: Run, frame: Frame, node: ast.AugAssign) -> None:
    value = run.evaluate(frame, node.value)
    for option in options(value):
        if isinstance(option, StepOutput):
            run.trace.uses.append(Use(node.value, frame.module, option, "arithmetic"))
    before = run.evaluate(frame, node.target)
    result = compute(node.op, before, value)
    if isinstance(before, Mapping) and isinstance(result, Mapping):
        for key, entry in result.entries.items():
            run.write(before.entries, key, entry)
        run.write(before, "open", result.open)
    elif isinstance(before, Collection) and isinstance(result, Collection):
        run.write(before, "items", result.items)
        run.write(before, "open", result.open or ("it grows in a loop" if run.repeats else ""))
    else:
        # A loop that is followed once changes the value more than once.
        result = Operation(type(node.op).__name__, (before, value)) if run.repeats else result
        if isinstance(node.target, ast.Attribute):
            for option in options(run.evaluate(frame, node.target.value)):
                set_attribute(run, option, node.target.attr, result)
        else:
            bind_target(run, frame, node.target, result)


def _delete(run: Run, frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            run.write(frame.scope.names_for(target.id), target.id, ABSENT)
        elif isinstance(target, ast.Subscript):
            owner, key = run.evaluate(frame, target.value), run.evaluate(frame, target.slice)
            if isinstance(owner, Mapping) and isinstance(key, Constant):
                run.write(owner.entries, key.value, ABSENT)


def _function(run: Run, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    closure = frame.scope
    while closure.is_class and closure.parent is not None:
        closure = closure.parent
    function = Function(node, frame.module, closure)
    run.trace.functions.append(function)
    for decorator in reversed(node.decorator_list):
        value = run.evaluate(frame, decorator)
        function.step = function.step or step_mark(value, decorator) or _mark_by(run, value, function)
        if is_command(value):
            run.trace.commands.append(function)
        name = value.path if isinstance(value, External) else ""
        function.static = function.static or name == "staticmethod"
        function.is_property = function.is_property or name in ("property", "functools.cached_property")
    run.bind(frame, node.name, function)


def _mark_by(run: Run, decorator: Value, function: Function) -> StepMark | None:
    """Return the mark that a decorator of the script's own puts on a function: ``def step(f): return smp.step(f)``."""
    for option in options(decorator):
        if isinstance(option, Function) and option.step is None and run.follows(option):
            names = option.positional
            returned = run.enter(option, {names[0]: function}) if len(names) == 1 else Unknown()
            for result in options(returned):
                if isinstance(result, Function) and result.node is function.node and result.step is not None:
                    return result.step
    return None


def _class(run: Run, frame: Frame, node: ast.ClassDef) -> None:
    # ``Dataset[int]`` is ``Dataset``.
    written = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    bases = tuple(run.evaluate(frame, base) for base in written)
    scope = Scope(frame.scope, is_class=True)
    cls = Class(node, frame.module, scope, bases, scope.names)
    execute(run, Frame(frame.module, scope), node.body)
    for member in scope.names.values():
        if isinstance(member, Function):
            member.home = cls
    run.trace.classes.append(cls)
    run.bind(frame, node.name, cls)


def _return(run: Run, frame: Frame, node: ast.Return) -> Leaving:
    frame.returned.append(run.evaluate(frame, node.value))
    return "return"


def _leave(run: Run, frame: Frame, node: ast.Raise | ast.Break | ast.Continue | ast.Assert) -> Leaving:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            run.evaluate(frame, child)
    return None if isinstance(node, ast.Assert) else type(node).__name__.lower()


def _if(run: Run, frame: Frame, node: ast.If) -> Leaving:
    test = run.evaluate(frame, node.test)
    decided = truth(test)
    if decided and run.computes and not node.orelse and isinstance(node.body[0], ast.Raise):
        # A guard of a job's cell: the job below it is read all the same.
        return None
    if decided is not None:
        return execute(run, frame, node.body if decided else node.orelse)
    run.count(_STEPS_OF_A_BRANCH)
    why = run.trace.decide(node.test, test)
    paths: list[tuple[Leaving, Changes]] = []
    for holds, block in ((True, node.body), (False, node.orelse)):
        with run.journal.branch() as changes, run.under(Guard(node.test, test, holds)):
            leaving = execute(run, frame, block)
        paths.append((leaving, changes))
        if leaving in ("break", "return") and run.loops and _is_of_the_function(run, frame):
            loop = run.loops[-1]
            around = [guard for guard in run.guards if loop.lineno <= guard.test.lineno <= loop.end_lineno]  # type: ignore[attr-defined]
            around = [guard for guard in around if node in ast.walk(frame.module.parent(guard.test) or guard.test)]
            for guard in (Guard(node.test, test, holds), *around):
                run.trace.departures.append(Departure(frame.module, guard, loop, run.order))
    body_leaves, orelse_leaves = (leaving is not None for leaving, _ in paths)
    if body_leaves != orelse_leaves:
        # The statements below run only after the branch that stays.
        ends = "raise" in (paths[0][0], paths[1][0])
        run.guards.append(Guard(node.test, test, holds=orelse_leaves, or_ends=ends))
    return _after(run, frame, paths, why)


def _is_of_the_function(run: Run, frame: Frame) -> bool:
    """Return whether the innermost loop is one of the function in progress: a return leaves no loop of its caller."""
    node = run.functions[-1].node if run.functions else None
    return node is None or (frame.function is not None and run.loops[-1] in ast.walk(node))


def _after(run: Run, frame: Frame, paths: list[tuple[Leaving, Changes]], why: Reason) -> Leaving:
    """Join branches of which one has run. Returns how they leave the block, if all of them do."""
    staying = [changes for leaving, changes in paths if leaving is None]
    if staying:
        frame.exits += [(leaving, changes) for leaving, changes in paths if leaving not in (None, "raise")]
    together, *further = staying or [changes for _, changes in paths]
    for changes in further:
        together = joined(together, changes, why)
    run.journal.apply(together)
    if staying:
        return None
    ways = [leaving for leaving, _ in paths]
    return next((way for way in ("return", "break", "continue") if way in ways), "raise")


def _loop(run: Run, frame: Frame, node: ast.For | ast.AsyncFor | ast.While) -> Leaving:
    over = Unknown() if isinstance(node, ast.While) else run.evaluate(frame, node.iter)
    first, depth, exits = run.order + 1, len(run.guards), len(frame.exits)
    leaving: Leaving = None
    run.loops.append(node)
    for computed in _rounds(run, frame, node, over):
        if not computed:
            run.loops.pop()
            return _once(run, frame, node, over)
        leaving = execute(run, frame, node.body)
        del run.guards[depth:]
        if leaving not in (None, "continue"):
            break
        if isinstance(node, ast.While) and any(way in ("break", "return") for way, _ in frame.exits[exits:]):
            # A condition that is not known ends the loop, so the number of its rounds is not known.
            run.loops.pop()
            return _once(run, frame, node, over)
    run.loops.pop()
    run.trace.iterations.append(Iteration(node, frame.module, over, (first, run.order)))
    _rejoin(run, frame, exits, f"it is set in the loop of line {frame.module.source.locate(node.lineno)[1]}")
    if leaving in ("return", "raise"):
        return leaving
    return None if leaving == "break" else execute(run, frame, node.orelse)


def _rounds(run: Run, frame: Frame, node: ast.For | ast.AsyncFor | ast.While, over: Value) -> Iterator[bool]:
    """Prepare each round of a loop; False if the rounds are not known."""
    if isinstance(node, ast.While):
        for _ in range(MAX_ITEMS if run.computes else 0):
            decided = truth(run.evaluate(frame, node.test))
            if decided is None:
                break
            if not decided:
                return
            yield True
        yield False
        return
    items = element_values(over) if run.computes else None
    for value in items if items is not None and len(items) <= MAX_ITEMS else [None]:
        if value is not None:
            bind_target(run, frame, node.target, value)
        yield value is not None


def _once(run: Run, frame: Frame, node: ast.For | ast.AsyncFor | ast.While, over: Value) -> Leaving:
    """Follow a loop once. Values that it changes are not known afterwards."""
    why = f"it is set in the loop of line {frame.module.source.locate(node.lineno)[1]}"
    first, depth, exits = run.order + 1, len(run.guards), len(frame.exits)
    with run.journal.branch() as changes:
        run.loops.append(node)
        run.repeats += 1
        run.doubts += 1
        constants = {name: value for name, value in frame.scope.names.items() if isinstance(value, Constant)}
        nodes = (inner for statement in node.body for inner in ast.walk(statement)) if constants else ()
        assigned = {inner.id for inner in nodes if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
        for name in assigned & constants.keys():
            run.bind(frame, name, choice(constants[name], Unknown(why), why=why))
        if isinstance(node, ast.While):
            run.evaluate(frame, node.test)
        else:
            bind_target(run, frame, node.target, element(over))
        execute(run, frame, node.body)
        del run.guards[depth:]
        run.loops.pop()
        run.repeats -= 1
        run.doubts -= 1
    run.trace.iterations.append(Iteration(node, frame.module, over, (first, run.order)))
    run.journal.join(changes, why)
    _rejoin(run, frame, exits, why)
    return execute(run, frame, node.orelse)


def _rejoin(run: Run, frame: Frame, start: int, why: Reason) -> None:
    """Join the changes of branches that left the loop, which are in the exits from `start` on."""
    outward = [(leaving, changes) for leaving, changes in frame.exits[start:] if leaving == "return"]
    for leaving, changes in frame.exits[start:]:
        if leaving != "return":
            run.journal.join(changes, why)
    frame.exits[start:] = outward


def _with(run: Run, frame: Frame, node: ast.With | ast.AsyncWith) -> Leaving:
    depth = len(run.contexts)
    for context in node.items:
        value = run.evaluate(frame, context.context_expr)
        run.contexts.append(value)
        if context.optional_vars is not None:
            bind_target(run, frame, context.optional_vars, value)
    leaving = execute(run, frame, node.body)
    del run.contexts[depth:]
    return leaving


def _try(run: Run, frame: Frame, node: ast.Try) -> Leaving:
    if run.computes:
        # In a cell, handlers are for errors of credentials or the network.
        leaving = execute(run, frame, node.body) or execute(run, frame, node.orelse)
        return execute(run, frame, node.finalbody) or leaving
    paths: list[tuple[Leaving, Changes]] = []
    optional = any(not _ends(handler.body) for handler in node.handlers)
    for block in ([*node.body, *node.orelse], *(handler.body for handler in node.handlers)):
        depth = len(run.guards)
        run.optional += optional
        with run.journal.branch() as changes:
            leaving = execute(run, frame, block)
        run.optional -= optional
        if paths:
            del run.guards[depth:]
        paths.append((leaving, changes))
    leaving = _after(run, frame, paths, "an error can occur before it is set")
    return execute(run, frame, node.finalbody) or leaving


def _ends(body: list[ast.stmt]) -> bool:
    """Return whether the handler of an error ends the file."""
    last = body[-1]
    left = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and ast.unparse(last.value.func) in LEAVING
    return isinstance(last, ast.Raise) or left


def _match(run: Run, frame: Frame, node: ast.Match) -> Leaving:
    value = run.evaluate(frame, node.subject)
    paths: list[tuple[Leaving, Changes]] = []
    fits: bool | None = None
    for case in node.cases:
        fits = _fits(run, frame, value, case)
        if fits is False:
            continue
        if fits and not paths:
            return execute(run, frame, case.body)
        with run.journal.branch() as changes, run.under(Guard(node.subject, value, holds=True)):
            for pattern in ast.walk(case.pattern):
                if isinstance(pattern, (ast.MatchAs, ast.MatchStar)) and pattern.name is not None:
                    run.bind(
                        frame, pattern.name, value if pattern is case.pattern else Unknown("it is part of a match")
                    )
            paths.append((execute(run, frame, case.body), changes))
        if fits:
            break
    return _after(run, frame, paths if fits else [*paths, (None, {})], node.subject)


def _fits(run: Run, frame: Frame, value: Value, case: ast.match_case) -> bool | None:
    """Return whether a case is the one that runs; None if that is not known."""
    if case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
        return True
    if isinstance(case.pattern, ast.MatchValue):
        equal = compare(ast.Eq(), value, run.evaluate(frame, case.pattern.value))
        return equal if case.guard is None or equal is False else None
    return None


def _outer(_run: Run, frame: Frame, node: ast.Global | ast.Nonlocal) -> None:
    frame.scope.outer |= frozenset(node.names)


_HANDLERS: dict[type[ast.stmt], Callable[..., Leaving]] = {
    ast.Expr: _expression,
    ast.AugAssign: _augmented,
    ast.Delete: _delete,
    ast.ClassDef: _class,
    ast.Return: _return,
    ast.If: _if,
    ast.Match: _match,
    ast.Assert: _leave,
    **dict.fromkeys((ast.Assign, ast.AnnAssign), _assign),
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef), _function),
    **dict.fromkeys((ast.Raise, ast.Break, ast.Continue), _leave),
    **dict.fromkeys((ast.For, ast.AsyncFor, ast.While), _loop),
    **dict.fromkeys((ast.With, ast.AsyncWith), _with),
    **dict.fromkeys((ast.Try, ast.TryStar), _try),
    **dict.fromkeys((ast.Global, ast.Nonlocal), _outer),
    **dict.fromkeys((ast.Import, ast.ImportFrom), bind_import),
}
