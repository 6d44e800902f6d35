"""State of following one script: what has been seen, and under which circumstances the next line runs."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smp_advisor.reading.trace import Call, Trace
from smp_advisor.reading.values import Function, Unknown, Value

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from pathlib import Path

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.scope import Scope
    from smp_advisor.reading.source import Source, Unresolved
    from smp_advisor.reading.trace import Guard

__all__ = ["MAX_CALLS_OF_ONE", "MAX_DEPTH", "Frame", "Run"]

MAX_DEPTH = 16
"""Calls within calls that are followed."""
MAX_CALLS_OF_ONE = 3
"""Times that one function is followed; later calls are taken to return what the last one did."""


@dataclass(slots=True, eq=False)
class Frame:
    """One module or function call in progress."""

    module: Module
    scope: Scope
    function: Function | None = None
    returned: list[Value] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Run:
    """Everything that following the script keeps in mind."""

    trace: Trace = field(default_factory=Trace)
    unresolved: list[Unresolved] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    contexts: list[Value] = field(default_factory=list)
    loops: list[ast.AST] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    step: Function | None = None
    reached: bool = True
    order: int = 0
    followed: Counter[ast.AST] = field(default_factory=Counter)
    results: dict[ast.AST, Value] = field(default_factory=dict)
    modules: dict[Path, Module] = field(default_factory=dict)
    texts: dict[Path, Source] = field(default_factory=dict)
    """Modules beside the script that are taken as given here, and not read from their files."""

    def follows(self, function: Function) -> bool:
        """Whether a call of `function` is looked into once more."""
        if any(running.node is function.node for running in self.functions):
            return False
        return len(self.functions) < MAX_DEPTH and self.followed[function.node] < MAX_CALLS_OF_ONE

    @contextmanager
    def under(self, guard: Guard) -> Iterator[None]:
        """Run the block under a condition."""
        self.guards.append(guard)
        depth = len(self.guards)
        try:
            yield
        finally:
            del self.guards[depth - 1 :]

    @contextmanager
    def inside(self, function: Function) -> Iterator[None]:
        """Run the block as the body of `function`."""
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
        """Note a call, in order."""
        self.order += 1
        call.order = self.order
        self.trace.add(call)
        return call

    def last_result(self, function: Function) -> Value:
        """What the function returned when it was followed last."""
        return self.results.get(function.node) or Unknown()
