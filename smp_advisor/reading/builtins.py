"""Results of calls of Python's own functions, and of those that hand functions on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.reading.functions import FUNCTIONS, call_method, dictionary
from smp_advisor.reading.imports import load_module
from smp_advisor.reading.launching import launch
from smp_advisor.reading.names import COMMAND_LINES, NAMESPACES, TRANSPARENT
from smp_advisor.reading.places import attribute
from smp_advisor.reading.values import (
    Argument,
    Class,
    Collection,
    Constant,
    Entry,
    External,
    Function,
    Instance,
    Mapping,
    Partial,
    Result,
    StepMark,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    import ast

    from smp_advisor.reading.run import Frame, Run
    from smp_advisor.reading.trace import Call

__all__ = ["known_result", "step_mark"]

_OF_CLASSES = {"torch.optim": "SelectedOptimizer", "torch.optim.lr_scheduler": "SelectedScheduler"}
"""Modules of classes that scripts choose by name, with a name for the chosen class."""


def known_result(run: Run, frame: Frame, event: Call, target: Value) -> Value:
    """The result of a call of something external."""
    first = event.arguments[0] if event.arguments else None
    if (launched := launch(run, event)) is not None:
        return launched if event.name in COMMAND_LINES else Result(event)
    mark = step_mark(External(event.name), event.node.func) if event.name else step_mark(target, event.node.func)
    if mark is not None and isinstance(first, Function):
        return replace(first, step=mark)
    if event.name in TRANSPARENT and isinstance(first, Function):
        return first
    if event.name == "functools.partial" and first is not None:
        return _partial(event, first)
    if event.name == "getattr" and len(event.arguments) > 1:
        return _attribute(run, frame, event)
    if event.name in ("importlib.import_module", "__import__"):
        return _module(run, frame, event)
    if event.name == "hydra.utils.instantiate":
        return _configured(run, event)
    if event.name in ("globals", "locals") and not run.computes:
        return _functions_here(frame)
    if event.name == "setattr" and len(event.arguments) == 3:
        _set(run, event)
    return _data(run, event, first) or Result(event)


def _data(run: Run, event: Call, first: Value | None) -> Value | None:
    """The result of a function or method of plain data."""
    if event.name == "dict" or (event.name in NAMESPACES and not event.arguments):
        return dictionary(event)
    if event.name == "vars" and isinstance(first, Mapping):
        return first
    if event.name in FUNCTIONS and not event.unpacks and (run.computes or event.name != "range"):
        return FUNCTIONS[event.name](event.arguments, event.keywords)
    return call_method(run, event) if event.receiver is not None else None


def step_mark(value: Value, decorator: ast.expr) -> StepMark | None:
    """How ``smp.step`` marks a function, if `value` is that decorator or its call."""
    for option in options(value):
        if isinstance(option, External) and option.path in ("smp.step", "smptf.step"):
            return StepMark(decorator, (), option.path == "smptf.step")
        if isinstance(option, Result) and option.call.name in ("smp.step", "smptf.step"):
            names = option.call.argument("non_split_inputs", 0)
            return StepMark(decorator, _texts(names), option.call.name == "smptf.step")
        if isinstance(option, Partial):
            inner = step_mark(option.of, decorator)
            if inner is not None:
                return StepMark(decorator, _texts(option.keywords.get("non_split_inputs")), inner.tensorflow)
    return None


def _texts(value: Value | None) -> tuple[str, ...] | None:
    if value is None or (isinstance(value, Constant) and value.value is None):
        return ()
    if isinstance(value, Constant) and isinstance(value.value, str):
        return (value.value,)
    if isinstance(value, Collection) and all(isinstance(item, Constant) for item in value.items):
        return tuple(str(item.value) for item in value.items if isinstance(item, Constant))
    return None


def _partial(event: Call, first: Value) -> Value:
    called: list[Value] = []
    for option in options(first):
        callable_here = isinstance(option, (Function, Class, External, Partial))
        passed = Mapping(dict(event.passed.entries), None, event.passed.open)
        called.append(Partial(option, event.arguments[1:], passed) if callable_here else Result(event))
    return choice(*called)


def _attribute(run: Run, frame: Frame, event: Call) -> Value:
    """``getattr(object, "name")``, or the default in the third argument."""
    names = [option.value for option in options(event.arguments[1]) if isinstance(option, Constant)]
    if not names or not all(isinstance(name, str) for name in names):
        return _chosen(event) or Result(event)
    values = [attribute(run, frame, owner, name, event.node) for name in names for owner in options(event.arguments[0])]
    data = all(isinstance(value, (Constant, Mapping, Collection)) for value in values)
    return choice(*values, *([] if data else event.arguments[2:3]))


def _functions_here(frame: Frame) -> Mapping:
    """The functions and classes in ``globals()``. Other names can change in functions."""
    names = frame.module.scope.names.items()
    return Mapping(
        {name: Entry(value) for name, value in names if isinstance(value, (Function, Class))}, None, "other names"
    )


def _chosen(event: Call) -> Value | None:
    """``getattr(torch.optim, name)`` with a name that is not known: an optimizer by the default of its option."""
    owner, name = event.arguments[:2]
    if not isinstance(owner, External) or owner.path not in _OF_CLASSES:
        return None
    default = name.default.value if isinstance(name, Argument) and isinstance(name.default, Constant) else None
    return External(f"{owner.path}.{default if isinstance(default, str) else _OF_CLASSES[owner.path]}")


def _configured(run: Run, event: Call) -> Value:
    """``hydra.utils.instantiate(config, model.parameters())`` is an optimizer; other objects are not known."""
    parts = [*event.arguments[1:], *event.keywords.values()]
    if any(isinstance(part, Result) and part.call.method == "parameters" for part in parts):
        event.name = f"torch.optim.{_OF_CLASSES['torch.optim']}"
        return Result(event)
    what = "A configuration file names the class of this object, which is not followed."
    run.unresolved.append(event.module.source.unresolved(event.node.lineno, what))
    return Result(event)


def _module(run: Run, frame: Frame, event: Call) -> Value:
    """The module that ``importlib.import_module`` or ``__import__`` imports."""
    name = event.arguments[0] if event.arguments else None
    if isinstance(name, Constant) and isinstance(name.value, str) and name.value.replace(".", "").isidentifier():
        return load_module(run, frame, name.value, event.node)
    what = "The name of this module is computed, and the module is not followed."
    run.unresolved.append(event.module.source.unresolved(event.node.lineno, what))
    return Result(event)


def _set(run: Run, event: Call) -> None:
    name = event.arguments[1]
    for owner in options(event.arguments[0]):
        if isinstance(owner, Instance) and isinstance(name, Constant):
            run.write(owner.attributes, str(name.value), event.arguments[2])
