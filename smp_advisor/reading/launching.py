"""Functions that other code calls: a launcher, the command line, or whoever imports the file."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.names import COMMAND_LINES, COMMANDS, LAUNCHED, LAUNCHERS
from smp_advisor.reading.values import (
    Argument,
    Collection,
    Function,
    Mapping,
    Partial,
    Result,
    Unknown,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.reading.run import Run
    from smp_advisor.reading.trace import Call

__all__ = ["follow_entries", "is_command", "launch"]


def launch(run: Run, event: Call) -> Value | None:
    """Follow the functions that a launcher calls; the result of the last one, None if it calls none."""
    by_options = event.name in COMMAND_LINES
    if not by_options and event.name not in LAUNCHERS:
        return None
    targets = [event.arguments[0]] if event.arguments else [event.keywords[n] for n in LAUNCHED if n in event.keywords]
    if by_options and not event.arguments:
        targets = [function for function in run.trace.functions if _is_top_level(function)]
    returned: Value | None = None
    for function in (function for target in targets for function in _functions(target)):
        if run.follows(function):
            returned = run.enter(function, _of_options(run, function) if by_options else {})
    return returned


def _functions(target: Value) -> Iterator[Function]:
    """Functions that a target can be: one of a dictionary or list, or the one of a ``functools.partial``."""
    for option in options(target):
        if isinstance(option, Function):
            yield option
        elif isinstance(option, Partial):
            yield from _functions(option.of)
        elif isinstance(option, Mapping):
            for value in option.values().values():
                yield from _functions(value)
        elif isinstance(option, Collection):
            for value in option.items:
                yield from _functions(value)


def _of_options(run: Run, function: Function) -> dict[str, Value]:
    """Parameters of a function as options of the command line, with their defaults."""
    defaults = run.defaults(function)
    names = [*function.positional, *(argument.arg for argument in function.node.args.kwonlyargs)]
    bound: dict[str, Value] = {name: Argument(name, defaults.get(name, Unknown())) for name in names}
    if function.owner is not None and function.positional:
        bound[function.positional[0]] = function.owner
    return bound


def is_command(decorator: Value) -> bool:
    """Whether a decorator makes a function a command: ``@app.command()``, ``@hydra.main(...)``."""
    return any(
        isinstance(option, Result) and option.call.called in COMMANDS and option.call.function is None
        for option in options(decorator)
    )


def follow_entries(run: Run, is_entry: Callable[[], bool]) -> None:
    """Follow the functions that other code surely or probably calls: commands, and functions nobody here names."""
    for function in tuple(run.trace.functions):
        # The compiler's runtime calls this one, once per worker.
        if function.name == "_mp_fn" and not run.followed[function.node]:
            run.enter(function, {})
    for function in run.trace.commands:
        if function.module.entry and not run.followed[function.node]:
            run.enter(function, _of_options(run, function))
    candidates = [function for function in run.trace.functions if _is_top_level(function)]
    if not candidates or not is_entry():
        return
    names = _names_used(candidates[0].module.tree)
    for function in candidates:
        if not run.followed[function.node] and function.name not in names:
            run.trace.assumed_entries.append(function)
            defaults = run.defaults(function)
            bound = {
                name: choice(defaults[name], unknown) if name in defaults else unknown
                for name in function.positional
                for unknown in [Unknown(f"it is an argument of {function.name}")]
            }
            run.enter(function, bound)


def _is_top_level(function: Function) -> bool:
    top = function.scope is function.module.scope and function.home is None
    return function.module.entry and top and not isinstance(function.node, ast.Lambda)


def _names_used(tree: ast.Module) -> set[str]:
    """Names that the text reads, and names that it contains as text: keys of a registry."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return used | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
