"""State while one file is followed: calls and values so far, and the conditions of the next line."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smp_advisor.reading.branches import Changes, Journal
from smp_advisor.reading.trace import Call, Guard, Trace
from smp_advisor.reading.values import Collection, Constant, Function, Mapping, Unknown, Value, choice

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.scope import Scope
    from smp_advisor.reading.source import Source, Span, Unresolved

__all__ = ["Frame", "Leaving", "Run", "TooLongError"]

_MAX_DEPTH = 40
"""Calls within calls that are followed."""
_MAX_CALLS_OF_ONE = 3
"""Times that one function of a script is followed; later calls have the result of the last one."""
_MAX_STEPS = 100_000
"""Statements and expressions of a cell that are followed."""

Leaving = str | None
"""How statements leave their block: "return", "raise", "break", "continue"; None if they do not."""


class TooLongError(Exception):
    """A cell that does more than anyone would write to configure a job."""


@dataclass(slots=True, eq=False)
class Frame:
    """One module or function call in progress."""

    module: Module
    scope: Scope
    function: Function | None = None
    returned: list[Value] = field(default_factory=list)
    exits: list[tuple[Leaving, Changes]] = field(default_factory=list)
    """Changes of branches that have left the function or loop."""


@dataclass(slots=True, eq=False)
class Run:
    """State while one file is followed."""

    evaluate: Callable[[Frame, ast.expr | None], Value] = field(init=False)
    """Value of an expression."""
    execute: Callable[[Frame, list[ast.stmt]], Leaving] = field(init=False)
    """Follow statements; how they leave the block, if they surely do."""
    call: Callable[[Frame, ast.Call], Value] = field(init=False)
    """Value of a call."""
    enter: Callable[[Function, dict[str, Value]], Value] = field(init=False)
    """Result of a function with its parameters bound."""
    defaults: Callable[[Function], dict[str, Value]] = field(init=False)
    """Defaults of the parameters of a function."""
    computes: bool = False
    """Whether loops and functions are followed as often as they run, for cells that configure a job.

    Otherwise each loop is followed once: in scripts that train, and in functions of imported modules.
    """
    trace: Trace = field(default_factory=Trace)
    journal: Journal = field(default_factory=Journal)
    unresolved: list[Unresolved] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    contexts: list[Value] = field(default_factory=list)
    loops: list[ast.AST] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    step: Function | None = None
    reached: bool = True
    order: int = 0
    steps: int = 0
    doubts: int = 0
    """Undecided conditions around the present line."""
    optional: int = 0
    """Blocks around the present line that a missing package leaves without an error."""
    repeats: int = 0
    """Loops around the present line that run several times and are followed once."""
    stopped: tuple[int, str] | None = None
    """Line that surely ends the file, and why."""
    followed: Counter[ast.AST] = field(default_factory=Counter)
    results: dict[ast.AST, list[Value]] = field(default_factory=dict)
    modules: dict[Path, Module] = field(default_factory=dict)
    texts: dict[Path, Source] = field(default_factory=dict)
    """Modules next to the file that are taken from here instead of their files."""
    can_wait: Callable[[str], bool] = lambda _text: False
    """Whether a module with this text is followed only when a name of it is read."""
    waiting: dict[Path, Source] = field(default_factory=dict)
    """Modules that waited, by their files."""
    present: set[Path] = field(default_factory=set)
    """Files that an import looked for and that exist."""
    absent: set[Path] = field(default_factory=set)
    """Files that an import looked for and that do not exist."""

    def count(self, steps: int = 1) -> None:
        """Count statements, expressions and copies of data."""
        self.steps += steps
        if self.computes and self.steps > _MAX_STEPS:
            raise TooLongError

    def span(self, frame: Frame, node: ast.expr | ast.stmt | ast.keyword) -> Span | None:
        """Where a node is in the text; None in scripts and in imported modules, which are not corrected by spans."""
        return frame.module.source.span(node) if self.computes and frame.module.entry else None

    def write(self, owner: Any, key: Any, value: Any) -> None:
        """Set a name, key or field, so that it can be undone."""
        self.journal.write(owner, key, value)

    def bind(self, frame: Frame, name: str, value: Value) -> None:
        """Assign to a name."""
        self.journal.write(frame.scope.names_for(name), name, value)

    def follows(self, function: Function) -> bool:
        """Whether a call of `function` is followed once more."""
        # Under a condition that is not known, a function that calls itself would never end.
        again = any(running.node is function.node for running in self.functions)
        if len(self.functions) >= _MAX_DEPTH:
            note = function.module.source.unresolved(
                function.node.lineno,
                f"{function.name} is called within {_MAX_DEPTH} other calls, and not followed there.",
            )
            self.unresolved += [] if note in self.unresolved else [note]
            return False
        if again and (self.doubts or not self.computes):
            return False
        return self.computes or self.followed[function.node] < _MAX_CALLS_OF_ONE

    @contextmanager
    def under(self, guard: Guard) -> Iterator[None]:
        """Follow the block under a condition."""
        depth = len(self.guards)
        self.guards.append(guard)
        self.doubts += 1
        try:
            yield
        finally:
            self.doubts -= 1
            del self.guards[depth:]

    @contextmanager
    def inside(self, function: Function) -> Iterator[None]:
        """Follow the block as the body of `function`."""
        before = self.step
        self.functions.append(function)
        if function.step is not None:
            self.step = function
        try:
            yield
        finally:
            self.functions.pop()
            self.step = before

    def record(self, call: Call) -> Call:
        """Record a call, in order."""
        self.order += 1
        call.order = self.order
        call.sure = not self.doubts
        self.trace.add(call)
        return call

    def last_result(self, function: Function) -> Value:
        """The result of a call that is not followed: that of the last one, unless it is data that differs by call."""
        results = self.results.get(function.node)
        if not results or self.computes:
            return Unknown(f"{function.name} calls itself too often to be followed")
        merged = choice(*results)
        if merged is results[0] or not isinstance(results[-1], (Constant, Collection, Mapping)):
            return results[-1]
        return choice(merged, Unknown(f"{function.name} is called too often to be followed each time"))
