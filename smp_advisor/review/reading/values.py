"""Values of expressions, with their place in the text or the reason why they are not known, and names for them."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.source import Span
    from smp_advisor.review.reading.trace import Call


_MAX_OPTIONS = 6
AT_RUN_TIME = "it is known only when it runs"

Reason = str | ast.expr
"""Why a value is not known: a clause, or the condition that it depends on."""


@dataclass(slots=True, eq=False)
class Value:
    """Base of all values. They are compared by identity, because Python shares objects."""


@dataclass(slots=True, eq=False)
class Constant(Value):
    """A number, text, truth value or None."""

    value: Any
    span: Span | None = None
    """The expression that a correction would replace: the literal itself, wherever it is assigned."""


@dataclass(slots=True, eq=False)
class Argument(Value):
    """A command-line option, which the estimator's hyperparameters can set, and its default."""

    name: str
    default: Value


@dataclass(slots=True, eq=False)
class External(Value):
    """Something defined outside of the files that are read, by its full dotted name."""

    path: str


@dataclass(slots=True, eq=False)
class Result(Value):
    """The result of a call of something external."""

    call: Call
    attributes: dict[str, Value] = field(default_factory=dict)
    """Attributes that were assigned after the call, and items, by their keys in brackets."""


@dataclass(slots=True, eq=False)
class Member(Value):
    """An attribute of an object that cannot be looked into."""

    owner: Value
    name: str


@dataclass(slots=True, eq=False)
class Item(Value):
    """An element of an object: by key for a subscript, without a key for an iteration."""

    owner: Value
    key: Value | None


@dataclass(slots=True, eq=False)
class Operation(Value):
    """Arithmetic, comparison or formatting that could not be computed: its operands."""

    operator: str
    operands: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Collection(Value):
    """A tuple, list or set."""

    items: list[Value] = field(default_factory=list)
    span: Span | None = None
    open: str = ""
    """Why it may have further items; empty if all are known."""


@dataclass(slots=True, eq=False)
class Entry:
    """A key or keyword with its value."""

    value: Value
    span: Span | None = None
    """Key and value together."""
    value_span: Span | None = None
    """The expression of the value."""
    key_span: Span | None = None


@dataclass(slots=True, eq=False)
class Mapping(Value):
    """A dictionary, a namespace, or the keyword arguments of a call."""

    entries: dict[Any, Entry] = field(default_factory=dict)
    span: Span | None = None
    """Where it is written in braces or as a call; None if it is not in one place."""
    open: str = ""
    """Why it may have further keys; empty if all are known."""

    @property
    def complete(self) -> bool:
        """Whether every key is known."""
        return not self.open

    def get(self, key: str) -> Value | None:
        """Return the value of a key; None if there is none."""
        entry = self.entries.get(key)
        return None if entry is None else entry.value

    def values(self) -> dict[Any, Value]:
        """Return every key with its value."""
        return {key: entry.value for key, entry in self.entries.items()}


@dataclass(slots=True, eq=False)
class StepMark:
    """How a function was decorated with ``smp.step``."""

    decorator: ast.expr
    non_split_inputs: tuple[str, ...] | None
    """None if the argument is passed but not readable."""
    tensorflow: bool


@dataclass(slots=True, eq=False)
class Function(Value):
    """A function of the files that are read, with its closure."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    scope: Scope
    owner: Value | None = None
    """The object that the method is bound to."""
    step: StepMark | None = None
    static: bool = False
    is_property: bool = False
    home: Class | None = None

    @property
    def name(self) -> str:
        """Its name; a lambda has none."""
        return getattr(self.node, "name", "a lambda")

    @property
    def positional(self) -> list[str]:
        """Names of the parameters that can be passed by position."""
        return [argument.arg for argument in (*self.node.args.posonlyargs, *self.node.args.args)]


@dataclass(slots=True, eq=False)
class Partial(Value):
    """``functools.partial``: a callable with some of its arguments."""

    of: Value
    arguments: tuple[Value, ...]
    keywords: Mapping


@dataclass(slots=True, eq=False)
class Class(Value):
    """A class of the files that are read."""

    node: ast.ClassDef
    module: Module
    scope: Scope
    bases: tuple[Value, ...]
    members: dict[str, Value] = field(default_factory=dict)

    @property
    def lineage(self) -> Iterator[Class]:
        """The class and those of the files that it derives from, each once, in the order in which members are found."""
        waiting, passed = [self], set[int]()
        while waiting:
            cls = waiting.pop()
            if id(cls) not in passed:
                passed.add(id(cls))
                yield cls
                waiting += [base for base in reversed(cls.bases) if isinstance(base, Class)]

    def find(self, name: str) -> Value | None:
        """Look a member up in the class and in its bases."""
        return next((cls.members[name] for cls in self.lineage if name in cls.members), None)

    def fields(self) -> list[str]:
        """Annotated names in the order of a dataclass's fields."""
        names = [
            node.target.id
            for cls in reversed(list(self.lineage))
            for node in cls.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
        return list(dict.fromkeys(names))

    def ancestors(self) -> Iterator[str]:
        """Dotted names of the external classes that it derives from."""
        return (base.path for cls in self.lineage for base in cls.bases if isinstance(base, External))


@dataclass(slots=True, eq=False)
class Instance(Value):
    """An object of a class of the files that are read."""

    cls: Class
    call: Call
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class StepOutput(Value):
    """The result of an ``smp.step`` function: one value per microbatch."""

    of: Value
    call: Call


@dataclass(slots=True, eq=False)
class LocalModule(Value):
    """A module next to the file that is read."""

    module: Module


@dataclass(slots=True, eq=False)
class Choice(Value):
    """One of several values; the branch that runs decides."""

    alternatives: tuple[Value, ...]
    why: Reason = ""
    sides: tuple[Value, ...] = ()
    """Where `why` is a condition: the value if it holds, and the one if not."""


@dataclass(slots=True, eq=False)
class Unknown(Value):
    """Not readable from the text."""

    why: Reason = AT_RUN_TIME
    """For "... is not known: {why}"."""
    parameter: str = ""
    """Name of the parameter that it is, of a function that no line calls; a rank without more is the global one."""


def options(value: Value | None) -> tuple[Value, ...]:
    """Return the alternatives of a choice; the value itself otherwise; none of None."""
    if value is None:
        return ()
    return value.alternatives if isinstance(value, Choice) else (value,)


def parts_of(value: Value) -> tuple[Value, ...]:
    """Return the values that a value is made of: operands, items, what an item is taken from."""
    match value:
        case Operation():
            return value.operands
        case Collection():
            return tuple(value.items)
        case Mapping():
            return tuple(value.values().values())
        case Item():
            return (value.owner,)
        case Result():
            return tuple(stored for name, stored in value.attributes.items() if name[:1] == "[")
    return ()


def something(value: Value) -> tuple[Value, ...]:
    """Return the alternatives without None, if there are any: None has no attributes and cannot be called."""
    candidates = options(value)
    return tuple(option for option in candidates if not is_none(option)) or candidates


def each(value: Value, change: Callable[[Value], Value]) -> Value:
    """Return what becomes of the alternatives of a value but None, which the same condition decides."""
    if isinstance(value, Choice) and value.sides and not any(map(is_none, value.alternatives)):
        return choice(*(each(side, change) for side in value.sides), why=value.why)
    return choice(*map(change, something(value)))


def is_none(value: Value | None) -> bool:
    """Return whether it is surely None; an argument that is not passed is not."""
    return isinstance(value, Constant) and value.value is None


def choice(*values: Value, why: Reason = "") -> Value:
    """Return one of `values`; a single value if all are the same."""
    if len(values) == 1:
        return values[0]
    sides = values if isinstance(why, ast.expr) and len(values) == 2 else ()
    distinct: list[Value] = []
    for value in values:
        if isinstance(value, Choice):
            why = why or value.why
        for option in options(value):
            if not any(same(option, earlier) for earlier in distinct):
                distinct.append(option)
    if len(distinct) == 1:
        return distinct[0]
    if len(distinct) > _MAX_OPTIONS:
        distinct = [*distinct[: _MAX_OPTIONS - 1], Unknown(why or "it can be one of many")]
    return Choice(tuple(distinct), why, sides)


def same(first: Value, second: Value) -> bool:
    """Return whether both are surely equal."""
    if first is second:
        return True
    if isinstance(first, Constant) and isinstance(second, Constant):
        return type(first.value) is type(second.value) and bool(first.value == second.value)
    if isinstance(first, External) and isinstance(second, External):
        return first.path == second.path
    if isinstance(first, Collection) and isinstance(second, Collection):
        closed = not first.open and not second.open and len(first.items) == len(second.items)
        return closed and all(map(same, first.items, second.items))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        closed = first.complete and second.complete and first.entries.keys() == second.entries.keys()
        return closed and all(same(entry.value, second.entries[key].value) for key, entry in first.entries.items())
    return False


_BUILTINS = frozenset(dir(builtins))


@dataclass(slots=True, eq=False)
class Scope:
    """Names of one function call, class or module, inside of another scope."""

    parent: Scope | None = None
    names: dict[str, Value] = field(default_factory=dict)
    is_class: bool = False
    outer: frozenset[str] = frozenset()
    """Names that ``global`` or ``nonlocal`` sends to a scope further out."""
    deferred: list[Callable[[str], Value | None]] = field(default_factory=list)
    """Imports that are followed when a name is first read: each has the value of a name, None without one."""

    def find(self, name: str) -> Value | None:
        """Return the value of the name here or further out; None if it is not bound."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.names[name]
            if scope.deferred and scope.settle(name):
                return scope.names[name]
            scope = scope.parent
        return None

    def settle(self, name: str) -> bool:
        """Bind a name by the last deferred import that has it."""
        for value_of in reversed(self.deferred):
            value = value_of(name)
            if value is not None:
                self.names[name] = value
                return True
        return False

    def read(self, name: str) -> Value:
        """Like `find`, with Python's built-in names, and `Unknown` for the rest."""
        value = self.find(name)
        if value is not None:
            return value
        return External(name) if name in _BUILTINS else Unknown(f"{name} is set elsewhere")

    def names_for(self, name: str) -> dict[str, Value]:
        """Return the names that an assignment to `name` changes."""
        scope: Scope = self
        if name in self.outer:
            while scope.parent is not None and (scope is self or name not in scope.names):
                scope = scope.parent
        return scope.names
