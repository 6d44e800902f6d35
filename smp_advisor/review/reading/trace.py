"""Actions of a file, in the order in which they would run."""

from __future__ import annotations

import ast
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.values import Class, Function, Instance, Mapping, StepOutput, Value


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A condition under which code runs."""

    test: ast.expr
    value: Value
    holds: bool
    """False in the ``else`` branch, and after a branch that leaves."""
    or_ends: bool = False
    """Whether the program ends with an error where the condition does not hold."""


@dataclass(slots=True, eq=False)
class Call:
    """One call, with its place and the conditions under which it runs."""

    node: ast.Call
    module: Module
    order: int
    name: str
    """Dotted name of the function, if it is external."""
    method: str
    """Name of the attribute that is called."""
    receiver: Value | None
    """Object of the method, or the object that is called."""
    function: Function | None
    """The called function, if it is in a file that is read."""
    arguments: tuple[Value, ...]
    passed: Mapping
    """Keyword arguments; open if it has ``*`` or ``**`` arguments that are not known."""
    guards: tuple[Guard, ...]
    contexts: tuple[Value, ...]
    """Values of the ``with`` statements around it, outermost first."""
    loops: tuple[ast.AST, ...]
    functions: tuple[Function, ...]
    """Functions in progress, outermost first."""
    step: Function | None
    """The ``smp.step`` function that it runs in."""
    reached: bool
    """Whether running the file reaches it; False in functions that are not called here."""
    candidates: tuple[Value, ...] = ()
    """Everything that can be called here; each has a `Call`."""
    bound: dict[str, Value] = field(default_factory=dict)
    """Arguments by parameter, for a function that is followed."""
    sure: bool = True
    """Whether no undecided condition is around it."""

    @property
    def keywords(self) -> dict[str, Value]:
        """Keyword arguments by name."""
        return self.passed.values()

    @property
    def unpacks(self) -> bool:
        """Whether it has ``*`` or ``**`` arguments that are not known."""
        return not self.passed.complete

    @property
    def called(self) -> str:
        """Last part of the name of what is called."""
        return self.method or self.name.rpartition(".")[2]

    def argument(self, name: str, position: int | None = None) -> Value | None:
        """Argument by keyword or position; None if it is not passed."""
        entry = self.passed.entries.get(name)
        if entry is not None:
            return entry.value
        return self.arguments[position] if position is not None and position < len(self.arguments) else None

    def gives(self, name: str, position: int | None = None) -> bool:
        """Return whether the argument is passed, or may be in ``**`` arguments."""
        return self.unpacks or self.argument(name, position) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A value that a step returned: an attribute of it, or an operation on it."""

    node: ast.expr
    module: Module
    output: StepOutput
    how: str


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """An assignment to an attribute."""

    node: ast.Attribute
    module: Module
    owner: Value
    value: Value
    contexts: tuple[Value, ...]
    order: int


@dataclass(frozen=True, slots=True, eq=False)
class Iteration:
    """A loop over something."""

    node: ast.AST
    module: Module
    over: Value
    steps_inside: tuple[int, int]
    """`Call.order` of the first and last call in the loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """A condition under which a loop ends, or a function returns from it."""

    module: Module
    guard: Guard
    loop: ast.AST
    order: int


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Some elements of a collection: every n-th, or those with a remainder."""

    node: ast.expr
    module: Module
    by: Value
    out_of: Value
    """The slice's step, or the remainder that the number is compared with."""
    functions: tuple[Function, ...]


@dataclass(slots=True, eq=False)
class Trace:
    """Everything that checks use."""

    calls: list[Call] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    selections: list[Selection] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    """Defaults that were taken for values, one sentence each."""
    departures: list[Departure] = field(default_factory=list)
    tests: dict[ast.expr, Value] = field(default_factory=dict)
    """Conditions that decide between values: a `Choice` names the expression."""
    options: dict[str, Call] = field(default_factory=dict)
    """Calls that declare command-line options, by attribute."""
    classes: list[Class] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    commands: list[Function] = field(default_factory=list)
    """Functions whose decorator makes them commands."""
    assumed_entries: list[Function] = field(default_factory=list)
    """Functions that are followed as if another file called them."""
    instances: list[Instance] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    imports: list[tuple[Module, ast.stmt, str]] = field(default_factory=list)
    """Imports of external modules: file, statement and dotted name."""
    sure_imports: set[ast.stmt] = field(default_factory=set)
    """Import statements that run whenever the file runs, so that what they import must be installed."""
    results: dict[ast.AST, list[Value]] = field(default_factory=dict)
    """Values that followed functions return."""
    by_name: dict[str, list[Call]] = field(default_factory=dict)
    by_method: dict[str, list[Call]] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        """Record a call."""
        self.calls.append(call)
        if call.name:
            self.by_name.setdefault(call.name, []).append(call)
        if call.method:
            self.by_method.setdefault(call.method, []).append(call)

    def decide(self, test: ast.expr, value: Value) -> ast.expr:
        """Record the value of a condition; returns its expression, another one each time that the code runs."""
        why = copy(test)
        self.tests[why] = value
        return why

    def named(self, *names: str) -> list[Call]:
        """Return the calls of external functions by dotted name, in order."""
        calls = [call for name in names for call in self.by_name.get(name, ())]
        return sorted(calls, key=lambda call: call.order)

    def methods(self, *names: str) -> list[Call]:
        """Return the calls of attributes by name, in order; of modules' functions as well."""
        calls = [call for name in names for call in self.by_method.get(name, ())]
        return sorted(calls, key=lambda call: call.order)

    def imported(self, *prefixes: str) -> list[tuple[Module, ast.stmt, str]]:
        """Imports of the given packages or what is in them."""
        return [
            (module, node, name)
            for module, node, name in self.imports
            if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
        ]

    def requires(self, *prefixes: str) -> bool:
        """Return whether the file cannot run without one of the given packages."""
        return any(node in self.sure_imports for _, node, _ in self.imported(*prefixes))

    def each(self, prefix: str) -> Iterator[Call]:
        """Return the calls whose dotted name begins with `prefix`, in order."""
        return (call for call in self.calls if call.name.startswith(prefix))


def exclusive(earlier: Call, later: Call) -> bool:
    """Return whether two calls are in opposite branches of one condition, or of two conditions with the same text."""
    return any(
        first.holds != second.holds and (first.test is second.test or _dump(first.test) == _dump(second.test))
        for first in earlier.guards
        for second in later.guards
    )


def whenever(earlier: Call, later: Call) -> bool:
    """Return whether the earlier call runs whenever the later one runs."""
    return not exclusive(earlier, later) and all(
        any(guard.test is condition.test and guard.holds == condition.holds for condition in later.guards)
        for guard in earlier.guards
    )


@lru_cache(maxsize=4096)
def _dump(test: ast.expr) -> str:
    return ast.dump(test)
