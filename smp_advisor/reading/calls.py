"""Follow a call: into the script's own functions and classes, up to the door of everything else."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.builtins import known_result
from smp_advisor.reading.command_lines import declare
from smp_advisor.reading.expressions import evaluate
from smp_advisor.reading.scope import Scope
from smp_advisor.reading.trace import Call, Use
from smp_advisor.reading.values import (
    Class,
    Collection,
    Constant,
    External,
    Function,
    Instance,
    Item,
    Mapping,
    Member,
    Operation,
    Partial,
    Result,
    StepOutput,
    Unknown,
    Value,
    choice,
    options,
    something,
)

if TYPE_CHECKING:
    from smp_advisor.reading.run import Frame, Run

__all__ = ["call", "enter"]

_CALLED = ("forward", "call", "__call__")
"""What runs when an object of PyTorch, Keras or Python is called."""
_TENSOR_FUNCTIONS = ("float", "int", "torch.", "math.", "numpy.", "tensorflow.", "horovod.")


def call(run: Run, frame: Frame, node: ast.Call) -> Value:
    """The value of a call; the call is recorded once for each thing that it may be calling."""
    callee = evaluate(run, frame, node.func)
    positional, keywords, unpacks = _arguments(run, frame, node)
    results = []
    for named in something(callee):
        target, given, preset, hidden = _unwrapped(named)
        event = Call(
            node=node,
            module=frame.module,
            order=0,
            name=target.path if isinstance(target, External) else "",
            method=_method(node, target),
            receiver=_receiver(target),
            function=target if isinstance(target, Function) else None,
            arguments=given + positional,
            keywords=preset | keywords,
            unpacks=unpacks or hidden,
            guards=tuple(run.guards),
            contexts=tuple(run.contexts),
            loops=tuple(run.loops),
            functions=tuple(run.functions),
            step=run.step,
            reached=run.reached,
            candidates=something(callee),
        )
        results.append(_apply(run, frame, event, target))
    return choice(*results)


def _unwrapped(target: Value) -> tuple[Value, tuple[Value, ...], dict[str, Value], bool]:
    """What a ``functools.partial`` calls, and the arguments that it brings along."""
    arguments: tuple[Value, ...] = ()
    keywords: dict[str, Value] = {}
    unpacks = False
    while isinstance(target, Partial):
        arguments = target.arguments + arguments
        keywords = target.keywords | keywords
        unpacks = unpacks or target.unpacks
        target = target.of
    return target, arguments, keywords, unpacks


def enter(run: Run, function: Function, bound: dict[str, Value]) -> Value:
    """Follow the body of `function` with its parameters bound; what it returns."""
    from smp_advisor.reading.run import Frame as NewFrame
    from smp_advisor.reading.statements import execute

    node = function.node
    scope = Scope(function.scope)
    inner = NewFrame(function.module, scope, function)
    defaults = _defaults(run, function)
    known = run.reached
    for parameter in _parameters(node):
        default = defaults.get(parameter)
        if parameter in bound:
            scope.names[parameter] = bound[parameter]
        elif default is not None:
            # Of a function that nobody here calls, the default is one possibility.
            scope.names[parameter] = default if known else choice(default, Unknown())
        else:
            scope.names[parameter] = Unknown()
    run.followed[node] += 1
    with run.inside(function):
        if isinstance(node, ast.Lambda):
            returned = evaluate(run, inner, node.body)
        else:
            depth = len(run.guards)
            execute(run, inner, node.body)
            del run.guards[depth:]
            returned = choice(*inner.returned) if inner.returned else Constant(None)
    run.results[node] = returned
    return returned


def _receiver(target: Value) -> Value | None:
    if isinstance(target, Member):
        return target.owner
    if isinstance(target, Function):
        return target.owner
    return None if isinstance(target, (External, Class)) else target


def _method(node: ast.Call, target: Value) -> str:
    """The method that is called; empty where an attribute holds the object that is: ``self.model(batch)``."""
    held = isinstance(target, (Instance, Result, Item, StepOutput))
    return node.func.attr if isinstance(node.func, ast.Attribute) and not held else ""


def _arguments(run: Run, frame: Frame, node: ast.Call) -> tuple[tuple[Value, ...], dict[str, Value], bool]:
    positional: list[Value] = []
    keywords: dict[str, Value] = {}
    unpacks = False
    for argument in node.args:
        value = evaluate(run, frame, argument)
        if not isinstance(argument, ast.Starred):
            positional.append(value)
        elif isinstance(value, Collection):
            positional += value.items
        else:
            unpacks = True
    for keyword in node.keywords:
        value = evaluate(run, frame, keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, Mapping):
            keywords |= value.entries
            unpacks = unpacks or not value.complete
        else:
            unpacks = True
    return tuple(positional), keywords, unpacks


def _apply(run: Run, frame: Frame, event: Call, target: Value) -> Value:
    if isinstance(target, Function):
        return _follow(run, event, target)
    if isinstance(target, Class):
        return _construct(run, event, target)
    if isinstance(target, Instance):
        method = next((found for name in _CALLED if (found := target.cls.find(name)) is not None), None)
        if isinstance(method, Function):
            bound = Function(method.node, method.module, method.scope, target, method.step, home=method.home)
            return _follow(run, event, bound)
    run.record(event)
    _mutate(event)
    if event.method == "add_argument":
        declare(run, event)
    if _formats_numbers(event) or _wants_tensors(event):
        for node, value in zip(event.node.args, event.arguments, strict=False):
            how = f"{event.name or frame.module.text(event.node.func)}()"
            run.trace.uses += [Use(node, frame.module, output, how) for output in _outputs_in(value)]
    return known_result(run, frame, event, target)


def _follow(run: Run, event: Call, function: Function) -> Value:
    """Into a function of the script."""
    event.bound = _bind(function, event)
    run.record(event)
    returned = enter(run, function, event.bound) if run.follows(function) else run.last_result(function)
    return _outputs(returned, event) if function.step is not None and run.step is None else returned


def _wants_tensors(event: Call) -> bool:
    """Whether the call computes with its arguments."""
    if event.name:
        return event.name.startswith(_TENSOR_FUNCTIONS) and event.name not in ("torch.save", "tensorflow.print")
    made = event.receiver.call.name if isinstance(event.receiver, Result) else ""
    computes = made.startswith(("tensorflow.keras.", "keras.", "torchmetrics.", "torch.nn."))
    return computes and event.method in ("", "apply_gradients", "update_state", "update")


def _formats_numbers(event: Call) -> bool:
    """``"{:.3f}".format(loss)``."""
    text = event.receiver.value if event.method == "format" and isinstance(event.receiver, Constant) else None
    return isinstance(text, str) and ":" in text and "{" in text


def _outputs_in(value: Value, depth: int = 0) -> list[StepOutput]:
    """Outputs of a step in `value`, looking into lists and what pairs them up."""
    found: list[StepOutput] = []
    for option in options(value) if depth < 5 else ():
        if isinstance(option, StepOutput):
            found.append(option)
        elif isinstance(option, Collection):
            found += [output for item in option.items for output in _outputs_in(item, depth + 1)]
        elif isinstance(option, Operation) and option.operator == "comprehension":
            found += _outputs_in(option.operands[0], depth + 1)
        elif isinstance(option, Result) and option.call.name in ("zip", "list", "tuple", "enumerate"):
            found += [output for argument in option.call.arguments for output in _outputs_in(argument, depth + 1)]
    return found


def _construct(run: Run, event: Call, cls: Class) -> Value:
    instance = Instance(cls, event)
    run.trace.instances.append(instance)
    initializer = cls.find("__init__")
    if isinstance(initializer, Function):
        bound = Function(initializer.node, initializer.module, initializer.scope, instance, home=initializer.home)
        event.bound = _bind(bound, event)
        run.record(event)
        if run.follows(bound):
            enter(run, bound, event.bound)
    else:
        run.record(event)
        if not event.arguments:
            instance.attributes |= event.keywords  # a dataclass
    return instance


def _outputs(returned: Value, event: Call) -> Value:
    """One value a microbatch, for each value that the step returns."""
    results: list[Value] = []
    for option in options(returned):
        if isinstance(option, Collection):
            results.append(Collection(tuple(_outputs(item, event) for item in option.items)))
        elif isinstance(option, Mapping):
            results.append(Mapping({key: _outputs(value, event) for key, value in option.entries.items()}))
        else:
            results.append(StepOutput(option, event))
    return choice(*results)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    spec = node.args
    names = [argument.arg for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    names += [argument.arg for argument in (spec.vararg, spec.kwarg) if argument is not None]
    return names


def _defaults(run: Run, function: Function) -> dict[str, Value]:
    from smp_advisor.reading.run import Frame as NewFrame

    spec = function.node.args
    outside = NewFrame(function.module, function.scope)
    positional = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
    pairs: list[tuple[str, ast.expr]] = []
    if spec.defaults:
        pairs += zip(positional[-len(spec.defaults) :], spec.defaults, strict=True)
    pairs += [
        (argument.arg, default)
        for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        if default is not None
    ]
    return {
        name: evaluate(run, outside, default) if not isinstance(default, ast.Call) else Unknown()
        for name, default in pairs
    }


def _bind(function: Function, event: Call) -> dict[str, Value]:
    spec = function.node.args
    positional = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
    given: list[Value] = list(event.arguments)
    if function.owner is not None and not function.static and not _takes_no_object(positional, len(given)):
        given.insert(0, function.owner)
    bound = dict(zip(positional, given, strict=False))
    if spec.vararg is not None and not event.unpacks:
        bound[spec.vararg.arg] = Collection(tuple(given[len(positional) :]))
    accepted = set(positional) | {argument.arg for argument in spec.kwonlyargs}
    extra: dict[str, Value] = {}
    for name, value in event.keywords.items():
        (bound if name in accepted else extra)[name] = value
    if spec.kwarg is not None:
        bound[spec.kwarg.arg] = Mapping(extra, complete=not event.unpacks)
    if event.unpacks:
        # What is unpacked may bind any of the rest, in place of the defaults.
        for name in accepted - bound.keys():
            bound[name] = Unknown()
    return bound


def _takes_no_object(positional: list[str], given: int) -> bool:
    """Whether a function of a class is called without the object: what ``smp.step`` makes of it is no method."""
    return positional[:1] not in (["self"], ["cls"]) and 0 < len(positional) <= given


def _mutate(event: Call) -> None:
    """What ``update`` and ``append`` do to a dictionary or object that is known."""
    if event.method == "update" and isinstance(event.receiver, Mapping):
        for value in event.arguments:
            if isinstance(value, Mapping):
                _put(event.receiver, value.entries, sure=not event.guards)
                event.receiver.complete = event.receiver.complete and value.complete
            else:
                event.receiver.complete = False
        _put(event.receiver, event.keywords, sure=not event.guards)
    elif event.method == "setdefault" and isinstance(event.receiver, Mapping):
        event.receiver.complete = False


def _put(mapping: Mapping, entries: dict[str, Value], *, sure: bool) -> None:
    for key, value in entries.items():
        known = mapping.entries.get(key)
        mapping.entries[key] = value if sure or known is None else choice(known, value)
