"""State while one file is followed: calls and values so far, conditions of the next line, changes of branches."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.review.reading.data import shown
from smp_advisor.review.reading.trace import Call, Guard, Trace
from smp_advisor.review.reading.values import (
    Choice,
    Collection,
    Constant,
    Entry,
    Function,
    Mapping,
    Result,
    Unknown,
    Value,
    choice,
    same,
)

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.source import Source, Span, Unresolved
    from smp_advisor.review.reading.values import Reason, Scope


ABSENT: Any = object()
"""Stands for the value of a name or key that is not bound."""


@dataclass(frozen=True, slots=True)
class Change:
    """A name, key or field that a branch has set."""

    owner: Any
    """A dictionary of names or entries, or an object with fields."""
    key: Any
    before: Any
    after: Any = ABSENT


Changes = dict[tuple[int, Any], Change]


@dataclass(slots=True, eq=False)
class Journal:
    """Records the changes of the branch in progress."""

    _open: list[Changes] = field(default_factory=list)

    def write(self, owner: Any, key: Any, value: Any) -> None:
        """Set ``owner[key]`` of a dictionary, or a field of an object; `ABSENT` deletes the key."""
        if self._open:
            self._open[-1].setdefault((id(owner), key), Change(owner, key, _present(owner, key)))
        if not isinstance(owner, dict):
            setattr(owner, key, value)
        elif value is not ABSENT:
            owner[key] = value
        else:
            owner.pop(key, None)

    @contextmanager
    def branch(self) -> Iterator[Changes]:
        """Follow one branch; afterwards everything is as before, and the yielded changes are filled in."""
        changes: Changes = {}
        self._open.append(changes)
        try:
            yield changes
        finally:
            self._open.pop()
            for place, change in changes.items():
                changes[place] = replace(change, after=_present(change.owner, change.key))
        outer, self._open = self._open, []
        for change in changes.values():
            self.write(change.owner, change.key, change.before)
        self._open = outer

    def apply(self, changes: Changes) -> None:
        """Make the changes of a branch that surely ran."""
        for change in changes.values():
            self.write(change.owner, change.key, change.after)

    def join(self, changes: Changes, why: Reason) -> None:
        """Make the changes of a branch that may have run."""
        self.apply(joined({}, changes, why))


def joined(first: Changes, second: Changes, why: Reason) -> Changes:
    """Return the changes of two branches of which one has run."""
    both: Changes = {}
    for place, change in (first | second).items():
        now = _present(change.owner, change.key)
        sides = [branch[place].after if place in branch else now for branch in (first, second)]
        both[place] = replace(change, after=_either(sides[0], sides[1], why))
        if change.key == "items" and isinstance(change.owner, Collection) and len(sides[0]) != len(sides[1]):
            text = why if isinstance(why, str) else f"its length depends on `{shown(why)}`"
            both[id(change.owner), "open"] = Change(change.owner, "open", change.owner.open, change.owner.open or text)
    return both


def _present(owner: Any, key: Any) -> Any:
    return owner.get(key, ABSENT) if isinstance(owner, dict) else getattr(owner, key)


def _either(first: Any, second: Any, why: Reason) -> Any:
    """Return the value of a name, key or field after one of two branches."""
    if first is second:
        return first
    if isinstance(first, str):
        return first or second
    if isinstance(first, list):
        return [choice(*pair, why=why) for pair in zip(first, second, strict=False)]
    if isinstance(first, Entry) or isinstance(second, Entry):
        values = [Unknown(why) if side is ABSENT else side.value for side in (first, second)]
        return replace(second if first is ABSENT else first, value=choice(*values, why=why))
    # A name that only one branch binds has that value, wherever it can be read at all.
    if first is ABSENT or second is ABSENT:
        return second if first is ABSENT else first
    return choice(first, second, why=why)


def settled(value: Value, copies: dict[int, Value] | None = None) -> Value:
    """Return a copy that later changes do not reach, with dictionaries of several branches merged into one.

    `copies` keeps objects shared that are shared.
    """
    if type(value) is Constant:
        return value
    copies = {} if copies is None else copies
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, Mapping):
        mapping = Mapping({}, value.span, value.open)
        copies[id(value)] = mapping
        for key, entry in value.entries.items():
            mapping.entries[key] = Entry(settled(entry.value, copies), entry.span, entry.value_span, entry.key_span)
        return mapping
    if isinstance(value, Collection):
        collection = Collection([], value.span, value.open)
        copies[id(value)] = collection
        collection.items = [settled(item, copies) for item in value.items]
        return collection
    if isinstance(value, Result) and value.attributes:
        assigned = {name: Entry(settled(item, copies)) for name, item in value.attributes.items()}
        passed = value.call.passed
        call = replace(value.call, passed=Mapping({**passed.entries, **assigned}, passed.span, passed.open))
        copies[id(value)] = Result(call)
        return copies[id(value)]
    if isinstance(value, Choice) and all(isinstance(option, Mapping) for option in value.alternatives):
        merged = settled(value.alternatives[0], {})
        for option in value.alternatives[1:]:
            merged = _merged(merged, settled(option, {}), value.why)
        return merged
    return value


def _merged(first: Value, second: Value, why: Reason) -> Value:
    """Return one value for two branches: dictionaries are merged by key."""
    if same(first, second) or not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return choice(first, second, why=why)
    merged = Mapping({}, first.span, first.open or second.open)
    for key, entry in (second.entries | first.entries).items():
        values = [table.entries[key].value if key in table.entries else Unknown(why) for table in (first, second)]
        merged.entries[key] = replace(entry, value=_merged(values[0], values[1], why))
    return merged


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
    assumes: bool = False
    """Whether options and variables of the environment have their defaults, as where a job is configured."""
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
    modules: dict[Path, Module] = field(default_factory=dict)
    can_wait: Callable[[str], bool] = lambda _text: False
    """Whether a module with this text is followed only when a name of it is read."""
    waiting: dict[Path, Source] = field(default_factory=dict)
    """Modules that waited, by their files."""
    looked_for: dict[Path, bool] = field(default_factory=dict)
    """Files that an import looked for, and whether they exist."""

    def count(self, steps: int = 1) -> None:
        """Count statements, expressions and copies of data."""
        self.steps += steps
        if self.computes and self.steps > _MAX_STEPS:
            raise TooLongError

    def span(self, frame: Frame, node: ast.expr | ast.stmt | ast.keyword) -> Span | None:
        """Where a node is in the text; None in scripts and in imported modules, which are not corrected by spans."""
        return frame.module.source.span(node) if self.computes and frame.module.entry else None

    def assume(self, name: str, default: Value) -> Value:
        """Return the default of an option or variable, noted as an assumption; the value itself if it has none."""
        if isinstance(default, Constant) and default.value is not None:
            note = f"{name} is {default.value!r}, its default."
            self.trace.assumed += [] if note in self.trace.assumed else [note]
            return Constant(default.value)
        return default

    def write(self, owner: Any, key: Any, value: Any) -> None:
        """Set a name, key or field, so that it can be undone."""
        self.journal.write(owner, key, value)

    def bind(self, frame: Frame, name: str, value: Value) -> None:
        """Assign to a name."""
        self.journal.write(frame.scope.names_for(name), name, value)

    def follows(self, function: Function) -> bool:
        """Return whether a call of `function` is followed once more."""
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
        results = self.trace.results.get(function.node)
        if not results or self.computes:
            return Unknown(f"{function.name} calls itself too often to be followed")
        merged = choice(*results)
        if merged is results[0] or not isinstance(results[-1], (Constant, Collection, Mapping)):
            return results[-1]
        return choice(merged, Unknown(f"{function.name} is called too often to be followed each time"))
