"""Follow a file from its first line to its last, into the functions that it calls; nothing is run."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from smp_advisor.review.reading.builtins import known_result
from smp_advisor.review.reading.data import element_values, from_plain, reason, unpack
from smp_advisor.review.reading.expressions import evaluate
from smp_advisor.review.reading.fragment import complete
from smp_advisor.review.reading.module import ScriptError, parse
from smp_advisor.review.reading.outside import follow_entries
from smp_advisor.review.reading.places import declare
from smp_advisor.review.reading.run import Frame, Run, joined, settled
from smp_advisor.review.reading.statements import execute, follow_the_rest
from smp_advisor.review.reading.trace import Call
from smp_advisor.review.reading.values import (
    Class,
    Collection,
    Constant,
    Entry,
    External,
    Function,
    Instance,
    Item,
    Mapping,
    Member,
    Partial,
    Result,
    Scope,
    StepOutput,
    Unknown,
    Value,
    choice,
    options,
    something,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping as MappingABC
    from typing import Any

    from smp_advisor.review.reading.source import Source


_STEPS_OF_A_CALL = 40
"""Steps that take as long as the call of a function."""
_CALLED = ("forward", "call", "__call__")
"""Methods that run when an object of PyTorch, Keras or Python is called."""


def call(run: Run, frame: Frame, node: ast.Call) -> Value:
    """Return the value of a call. It is recorded once for each possible function."""
    candidates = something(run.evaluate(frame, node.func))
    positional, passed = _arguments(run, frame, node)
    results = []
    for candidate in candidates:
        target, arguments, keywords = _unwrapped(candidate)
        receiver = target.owner if isinstance(target, (Member, Function)) else target
        # The method that is called; none if an attribute holds the object that is: self.model(batch).
        is_object = isinstance(target, (Instance, Result, Item, StepOutput))
        member = target.name if isinstance(target, Member) else ""  # ``sync = model.no_sync``, then ``with sync():``
        event = Call(
            node=node,
            module=frame.module,
            order=0,
            name=target.path if isinstance(target, External) else "",
            method="" if is_object else getattr(node.func, "attr", member),
            receiver=None if isinstance(target, (External, Class)) else receiver,
            function=target if isinstance(target, Function) else None,
            arguments=arguments + positional,
            passed=_together(keywords, passed),
            guards=tuple(run.guards),
            contexts=tuple(run.contexts),
            loops=tuple(run.loops),
            functions=tuple(run.functions),
            step=run.step,
            reached=run.reached,
            candidates=candidates,
        )
        results.append(_apply(run, frame, event, target))
    return choice(*results)


def _together(first: Mapping, second: Mapping) -> Mapping:
    """Return the keyword arguments of a ``functools.partial`` with those of its call."""
    entries = {key: replace(entry) for key, entry in (first.entries | second.entries).items()}
    return Mapping(entries, second.span, first.open or second.open)


def _unwrapped(target: Value) -> tuple[Value, tuple[Value, ...], Mapping]:
    """Return the callable of a ``functools.partial``, with the arguments of the partial."""
    arguments: tuple[Value, ...] = ()
    passed = Mapping()
    while isinstance(target, Partial):
        arguments = target.arguments + arguments
        passed = _together(target.keywords, passed)
        target = target.of
    return target, arguments, passed


def enter(run: Run, function: Function, bound: dict[str, Value]) -> Value:
    """Follow the body of `function` with its parameters bound, and return its result."""
    node = function.node
    scope = Scope(function.scope)
    inner = Frame(function.module, scope, function)
    default_values = defaults(run, function)
    spec = (*node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
    for parameter in (*function.positional, *(argument.arg for argument in spec if argument is not None)):
        if parameter in bound:
            scope.names[parameter] = bound[parameter]
            continue
        # If nobody here calls the function, the default is one possibility.
        why = f"{parameter} is not passed" if run.reached else f"it is an argument of {function.name}"
        unknown = Unknown(why, "" if run.reached else parameter)
        default = default_values.get(parameter, unknown)
        scope.names[parameter] = default if run.reached else choice(default, unknown)
    run.followed[node] += 1
    run.count(_STEPS_OF_A_CALL)
    computes = run.computes
    # Loops of imported code often train or wait, and do not configure a job.
    run.computes = computes and function.module.entry
    with run.inside(function):
        if isinstance(node, ast.Lambda):
            returned = run.evaluate(inner, node.body)
        else:
            depth = len(run.guards)
            leaving = run.execute(inner, node.body)
            del run.guards[depth:]
            why = f"{function.name} returns in several places"
            returned = choice(*(inner.returned or [Constant(None)]), why=why if len(inner.returned) > 1 else "")
            if leaving == "raise" and run.computes:
                returned = Unknown(f"{function.name} ends with an error")
            for _, changes in inner.exits:
                own = {place: change for place, change in changes.items() if change.owner is not scope.names}
                run.journal.apply(joined({}, own, why))
    run.computes = computes
    run.trace.results.setdefault(node, []).append(returned)
    return returned


def _arguments(run: Run, frame: Frame, node: ast.Call) -> tuple[tuple[Value, ...], Mapping]:
    positional: list[Value] = []
    passed = Mapping({}, run.span(frame, node), frame.module.source.left_out(node))
    for argument in node.args:
        value = run.evaluate(frame, argument)
        if not isinstance(argument, ast.Starred):
            positional.append(value)
        elif (items := element_values(value)) is not None:
            positional += items
        else:
            passed.open = reason(value)
    for keyword in node.keywords:
        value = run.evaluate(frame, keyword.value)
        if keyword.arg is None:
            unpack(passed, value)
        else:
            passed.entries[keyword.arg] = Entry(value, run.span(frame, keyword), run.span(frame, keyword.value))
    return tuple(positional), passed


def _apply(run: Run, frame: Frame, event: Call, target: Value) -> Value:
    if isinstance(target, Function):
        return _follow_function(run, event, target)
    if isinstance(target, Class):
        return _construct(run, event, target)
    if isinstance(target, Instance):
        method = next((member for name in _CALLED if (member := target.cls.find(name)) is not None), None)
        if isinstance(method, Function):
            return _follow_function(run, event, replace(method, owner=target, static=False))
    run.record(event)
    if event.method == "add_argument":
        declare(run, event)
    result = known_result(run, frame, event, target)
    if run.computes and isinstance(result, Result):
        # Later changes to the arguments do not affect the call.
        copies: dict[int, Value] = {}
        event.arguments = tuple(settled(value, copies) for value in event.arguments)
        for entry in event.passed.entries.values():
            entry.value = settled(entry.value, copies)
        run.count(len(copies) // 10)
    return result


def _follow_function(run: Run, event: Call, function: Function) -> Value:
    event.bound = _bind(function, event)
    run.record(event)
    returned = run.enter(function, event.bound) if run.follows(function) else run.last_result(function)
    return _outputs(returned, event) if function.step is not None and run.step is None else returned


def _construct(run: Run, event: Call, cls: Class) -> Value:
    instance = Instance(cls, event)
    run.trace.instances.append(instance)
    initializer = cls.find("__init__")
    if isinstance(initializer, Function):
        bound = replace(initializer, owner=instance, step=None, static=False)
        event.bound = _bind(bound, event)
        run.record(event)
        if run.follows(bound):
            run.enter(bound, event.bound)
    else:
        run.record(event)
        # A dataclass or named tuple.
        instance.attributes |= dict(zip(cls.fields(), event.arguments, strict=False)) | event.keywords
    return instance


def _outputs(returned: Value, event: Call) -> Value:
    """Return one value per microbatch, for each value that the step returns."""
    results: list[Value] = []
    for option in options(returned):
        if isinstance(option, Collection):
            results.append(Collection([_outputs(item, event) for item in option.items]))
        elif isinstance(option, Mapping):
            results.append(Mapping({key: Entry(_outputs(value, event)) for key, value in option.values().items()}))
        else:
            results.append(StepOutput(option, event))
    return choice(*results)


def defaults(run: Run, function: Function) -> dict[str, Value]:
    """Defaults of the parameters of `function`, by name."""
    spec = function.node.args
    outside = Frame(function.module, function.scope)
    nodes = dict(zip(reversed(function.positional), reversed(spec.defaults), strict=False))
    keyword_only = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    nodes |= {argument.arg: node for argument, node in keyword_only if node is not None}
    return {
        name: Unknown(f"the default of {name} is computed")
        if isinstance(node, ast.Call) and not run.computes
        else run.evaluate(outside, node)
        for name, node in nodes.items()
    }


def _bind(function: Function, event: Call) -> dict[str, Value]:
    spec, positional = function.node.args, function.positional
    arguments: list[Value] = list(event.arguments)
    # A function in a class is called without its object where ``smp.step`` does not return a method.
    alone = positional[:1] not in (["self"], ["cls"]) and 0 < len(positional) <= len(arguments)
    if function.owner is not None and not function.static and not alone:
        arguments.insert(0, function.owner)
    bound = dict(zip(positional, arguments, strict=False))
    if spec.vararg is not None and not event.unpacks:
        bound[spec.vararg.arg] = Collection(arguments[len(positional) :])
    accepted = {*positional, *(argument.arg for argument in spec.kwonlyargs)}
    extra: dict[str, Entry] = {}
    for name, entry in event.passed.entries.items():
        if name in accepted:
            bound[name] = entry.value
        elif isinstance(name, str):
            extra[name] = entry
    if spec.kwarg is not None:
        bound[spec.kwarg.arg] = Mapping(extra, None, event.passed.open)
    if event.unpacks:
        # Unpacked arguments can bind any other parameter, instead of its default.
        for name in accepted - bound.keys():
            bound[name] = Unknown(event.passed.open)
    return bound


def follow(
    source: Source,
    *,
    computes: bool = False,
    assumes: bool = False,
    variables: MappingABC[str, Any] | None = None,
    concerns: Callable[[Run, Function], bool] = lambda _run, _function: True,
    is_entry: Callable[[Run], bool] = lambda _run: False,
    can_wait: Callable[[str], bool] = lambda _text: False,
    completes: bool = False,
) -> Run:
    """Follow the text of a script or cell, and the modules next to its file; `completes` a part of a script."""
    directory = source.file.resolve().parent if source.file is not None else None
    module = parse(source, directory=directory)
    module.scope.names |= {name: from_plain(value) for name, value in (variables or {}).items()}
    run = Run(computes=computes, assumes=assumes, can_wait=can_wait)
    run.evaluate, run.execute = partial(evaluate, run), partial(execute, run)
    run.call, run.enter, run.defaults = partial(call, run), partial(enter, run), partial(defaults, run)
    run.trace.modules.append(module)
    for line, why in source.skipped if source.cells else ():
        run.unresolved.append(source.unresolved(line, f"This cell is not Python ({why}): left out."))
    try:
        run.execute(Frame(module, module.scope), complete(run, module) if completes else module.tree.body)
        run.guards.clear()
        follow_entries(run, lambda: is_entry(run))
        follow_the_rest(run, lambda function: concerns(run, function))
    except RecursionError:
        raise ScriptError(f"{source.path} cannot be read: its expressions are nested too deeply.") from None
    return run
