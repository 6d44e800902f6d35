"""Follow a file from its first line to its last; nothing of it is run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from smp_advisor.reading.calls import call, defaults, enter
from smp_advisor.reading.data import from_plain
from smp_advisor.reading.expressions import evaluate
from smp_advisor.reading.launching import follow_entries
from smp_advisor.reading.module import ScriptError, parse
from smp_advisor.reading.run import Frame, Run
from smp_advisor.reading.statements import execute, follow_the_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from smp_advisor.reading.source import Source
    from smp_advisor.reading.values import Function

__all__ = ["follow"]


def follow(
    source: Source,
    *,
    computes: bool = False,
    variables: Mapping[str, Any] | None = None,
    texts: Mapping[Path, Source] | None = None,
    concerns: Callable[[Run, Function], bool] = lambda _run, _function: True,
    is_entry: Callable[[Run], bool] = lambda _run: False,
    can_wait: Callable[[str], bool] = lambda _text: False,
) -> Run:
    """Follow the text of a script or cell, and the modules next to its file.

    Parameters
    ----------
    source
        The text.
    computes
        Whether loops and functions are followed as often as they run; see `Run`.
    variables
        Plain data of names that the text itself does not assign.
    texts
        Modules that are taken from here instead of their files.
    concerns
        Which functions are followed that running the file does not call.
    is_entry
        Whether other files call the functions of this file that no line of it names.
    can_wait
        Whether a module with this text, which a module imports, is followed only when a name of it is read.

    Raises
    ------
    ScriptError
        If the text is not Python 3, or nested too deeply.
    TooLongError
        If `computes` and the text does more than configure a job.
    """
    directory = source.file.resolve().parent if source.file is not None else None
    module = parse(source, directory=directory)
    module.scope.names |= {name: from_plain(value) for name, value in (variables or {}).items()}
    run = Run(computes=computes, texts=dict(texts or {}), can_wait=can_wait)
    run.evaluate, run.execute = partial(evaluate, run), partial(execute, run)
    run.call, run.enter, run.defaults = partial(call, run), partial(enter, run), partial(defaults, run)
    run.trace.modules.append(module)
    for line, why in source.skipped if source.cells else ():
        run.unresolved.append(source.unresolved(line, f"This cell is not Python ({why}): left out."))
    try:
        run.execute(Frame(module, module.scope), module.tree.body)
        run.guards.clear()
        follow_entries(run, lambda: is_entry(run))
        follow_the_rest(run, lambda function: concerns(run, function))
    except RecursionError:
        raise ScriptError(f"{source.path} cannot be read: its expressions are nested too deeply.") from None
    return run
