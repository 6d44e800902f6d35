"""What a configuration says, value by value, and where in the text each stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Mapping

__all__ = [
    "Entry",
    "External",
    "Function",
    "Listing",
    "Made",
    "Method",
    "Scalar",
    "Span",
    "Table",
    "Unknown",
    "Value",
    "clone",
    "plain",
    "same",
]


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start`` to ``end`` of the text."""

    start: int
    end: int


@dataclass(slots=True, eq=False)
class Value:
    """Base; compared by identity, since tables are shared as Python shares them."""


@dataclass(slots=True, eq=False)
class Scalar(Value):
    """A number, text, truth value or None."""

    value: Any
    span: Span | None = None
    """The expression that a change would replace: the literal itself, wherever it is assigned."""


@dataclass(slots=True, eq=False)
class Entry:
    """A key or keyword with its value."""

    value: Value
    span: Span | None = None
    """Key and value together."""
    value_span: Span | None = None
    """The expression behind the key."""
    key_span: Span | None = None


@dataclass(slots=True, eq=False)
class Table(Value):
    """A dictionary."""

    entries: dict[Any, Entry] = field(default_factory=dict)
    span: Span | None = None
    """Where it is written out in braces or as ``dict(...)``; None where it has no one place."""
    open: str = ""
    """Why further keys may exist; empty where all are known."""

    def get(self, key: str) -> Value | None:
        """Value of a key; None where it has none."""
        entry = self.entries.get(key)
        return None if entry is None else entry.value


@dataclass(slots=True, eq=False)
class Listing(Value):
    """A list, tuple or set."""

    items: list[Value] = field(default_factory=list)
    span: Span | None = None


@dataclass(slots=True, eq=False)
class External(Value):
    """Something defined elsewhere, by its dotted name."""

    path: str


@dataclass(slots=True, eq=False)
class Made(Value):
    """What a call of something defined elsewhere returned: an estimator, a session, a configuration object."""

    path: str
    positional: list[Value]
    keywords: dict[str, Entry]
    span: Span
    open: str = ""
    """Why further arguments may be passed; empty where all are known."""
    sure: bool = True
    """False where a condition that reading cannot decide stands before it."""
    order: int = 0

    @property
    def name(self) -> str:
        """Last part of the dotted name."""
        return self.path.rpartition(".")[2]

    def get(self, key: str, position: int | None = None) -> Value | None:
        """Argument by keyword, or by position."""
        if key in self.keywords:
            return self.keywords[key].value
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None

    def table(self) -> Table:
        """Its keywords as a table."""
        return Table(self.keywords, self.span, self.open)


@dataclass(slots=True, eq=False)
class Function(Value):
    """A function of the text."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scopes: tuple[dict[str, Value], ...]


@dataclass(slots=True, eq=False)
class Method(Value):
    """An attribute of a known value, about to be called."""

    owner: Value
    name: str


@dataclass(slots=True, eq=False)
class Unknown(Value):
    """Not readable from the text."""

    why: str
    """For "… is not known: {why}"."""
    span: Span | None = None


def plain(value: Value, unknown: Callable[[Unknown | Value], Any] | None = None) -> Any:
    """The value as Python data; what is not known becomes what `unknown` makes of it, else raises `LookupError`."""
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, Table):
        return {key: plain(entry.value, unknown) for key, entry in value.entries.items()}
    if isinstance(value, Listing):
        return [plain(item, unknown) for item in value.items]
    if unknown is None:
        raise LookupError
    return unknown(value)


def same(one: Value, other: Value) -> bool:
    """Whether both are surely the same."""
    if one is other:
        return True
    if isinstance(one, Scalar) and isinstance(other, Scalar):
        return type(one.value) is type(other.value) and bool(one.value == other.value)
    if isinstance(one, External) and isinstance(other, External):
        return one.path == other.path
    if isinstance(one, Listing) and isinstance(other, Listing):
        return len(one.items) == len(other.items) and all(map(same, one.items, other.items))
    if isinstance(one, Table) and isinstance(other, Table):
        return (
            not one.open
            and not other.open
            and one.entries.keys() == other.entries.keys()
            and all(same(entry.value, other.entries[key].value) for key, entry in one.entries.items())
        )
    return isinstance(one, Function) and isinstance(other, Function) and one.node is other.node


def clone(value: Value, copies: dict[int, Value]) -> Value:
    """A copy that later changes leave alone; what is shared stays shared."""
    if not isinstance(value, (Table, Listing, Made)):
        return value
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, Table):
        table = Table({}, value.span, value.open)
        copies[id(value)] = table
        table.entries = _entries(value.entries, copies)
        return table
    if isinstance(value, Listing):
        listing = Listing([], value.span)
        copies[id(value)] = listing
        listing.items = [clone(item, copies) for item in value.items]
        return listing
    made = Made(value.path, [], {}, value.span, value.open, value.sure, value.order)
    copies[id(value)] = made
    made.positional = [clone(item, copies) for item in value.positional]
    made.keywords = _entries(value.keywords, copies)
    return made


def _entries(entries: Mapping[Any, Entry], copies: dict[int, Value]) -> dict[Any, Entry]:
    return {
        key: Entry(clone(entry.value, copies), entry.span, entry.value_span, entry.key_span)
        for key, entry in entries.items()
    }
