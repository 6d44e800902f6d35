"""What an expression can stand for, where it is in the text, and why it is not known."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.scope import Scope
    from smp_advisor.reading.source import Span
    from smp_advisor.reading.trace import Call

__all__ = [
    "Argument",
    "Choice",
    "Class",
    "Collection",
    "Constant",
    "Entry",
    "External",
    "Function",
    "Instance",
    "Item",
    "LocalModule",
    "Mapping",
    "Member",
    "Operation",
    "Partial",
    "Reason",
    "Result",
    "StepMark",
    "StepOutput",
    "Unknown",
    "Value",
    "choice",
    "distinct",
    "element_values",
    "from_plain",
    "options",
    "plain",
    "reason",
    "same",
    "settled",
    "shown",
    "something",
    "unpack",
]

MAX_ITEMS = 2_000
"""Items of one loop or list, and characters of a computed text, that are followed."""
_MAX_OPTIONS = 6
_OF_DATA = (
    "int",
    "float",
    "str",
    "bool",
    "len",
    "list",
    "tuple",
    "dict",
    "next",
    "iter",
    "min",
    "max",
    "sum",
    "sorted",
)
_LONGEST_SHOWN = 60
_AT_RUN_TIME = "it is known only when it runs"

Reason = str | ast.expr
"""Why a value is not known: a clause, or the condition that it depends on."""


@dataclass(slots=True, eq=False)
class Value:
    """Base of everything that an expression can stand for; compared by identity, as Python shares objects."""


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
    """Attributes that were assigned after the call."""


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
        """Value of a key; None if there is none."""
        entry = self.entries.get(key)
        return None if entry is None else entry.value

    def values(self) -> dict[Any, Value]:
        """Every key with its value."""
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

    def find(self, name: str) -> Value | None:
        """Look a member up in the class and in its bases."""
        if name in self.members:
            return self.members[name]
        for base in self.bases:
            if isinstance(base, Class) and base is not self and (member := base.find(name)) is not None:
                return member
        return None

    def fields(self) -> list[str]:
        """Annotated names in the order of a dataclass's fields."""
        inherited = [
            name for base in self.bases if isinstance(base, Class) and base is not self for name in base.fields()
        ]
        own = [
            node.target.id
            for node in self.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
        return list(dict.fromkeys(inherited + own))

    def ancestors(self) -> Iterator[str]:
        """Dotted names of the external classes that it derives from."""
        for base in self.bases:
            if isinstance(base, External):
                yield base.path
            elif isinstance(base, Class) and base is not self:
                yield from base.ancestors()


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


@dataclass(slots=True, eq=False)
class Unknown(Value):
    """Not readable from the text."""

    why: Reason = _AT_RUN_TIME
    """For "... is not known: {why}"."""


def options(value: Value | None) -> tuple[Value, ...]:
    """The alternatives of a choice; the value itself otherwise; none of None."""
    if value is None:
        return ()
    return value.alternatives if isinstance(value, Choice) else (value,)


def something(value: Value) -> tuple[Value, ...]:
    """The alternatives without None, if there are any: None has no attributes and cannot be called."""
    candidates = options(value)
    return tuple(option for option in candidates if not _is_none(option)) or candidates


def _is_none(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None


def choice(*values: Value, why: Reason = "") -> Value:
    """One of `values`; a single value if all are the same."""
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
    return Choice(tuple(distinct), why)


def same(first: Value, second: Value) -> bool:
    """Whether both are surely equal."""
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


def element_values(value: Value) -> list[Value] | None:
    """The items of an iteration over `value`; None if they are not known."""
    if isinstance(value, Collection) and not value.open:
        return list(value.items)
    if isinstance(value, Mapping) and value.complete:
        return [Constant(key) for key in value.entries]
    if isinstance(value, Constant) and isinstance(value.value, str) and len(value.value) <= MAX_ITEMS:
        return [Constant(letter) for letter in value.value]
    return None


def distinct(items: list[Value]) -> Collection:
    """A set of `items`; open if unknown ones can be equal."""
    constants = {item.value: item for item in reversed(items) if isinstance(item, Constant)}
    if len(constants) == len(items):
        return Collection(list(items))
    if all(isinstance(item, Constant) for item in items):
        return Collection(list(reversed(constants.values())))
    return Collection(list(items), open="its items can be equal")


def unpack(mapping: Mapping, value: Value) -> None:
    """Add the entries of ``**value``."""
    if isinstance(value, Mapping):
        mapping.entries |= {key: replace(entry) for key, entry in value.entries.items()}
        mapping.open = mapping.open or value.open
    else:
        mapping.open = reason(value)


def plain(value: Value, unknown: Callable[[Value], Any] | None = None) -> Any:
    """The value as Python data.

    `unknown` replaces what is not known; without it, that raises `LookupError`.
    """
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(entry.value, unknown) for key, entry in value.entries.items()}
    if isinstance(value, Collection) and not value.open:
        return [plain(item, unknown) for item in value.items]
    if unknown is None:
        raise LookupError
    return unknown(value)


def from_plain(data: Any) -> Value:
    """Python data as a value; anything else is not known."""
    if isinstance(data, dict):
        return Mapping({key: Entry(from_plain(value)) for key, value in data.items()})
    if isinstance(data, (list, tuple, set)):
        return Collection([from_plain(item) for item in data])
    if data is None or isinstance(data, (bool, int, float, str)):
        return Constant(data)
    return Unknown(f"it is a {type(data).__name__}")


def settled(value: Value, copies: dict[int, Value] | None = None) -> Value:
    """A copy that later changes do not reach, with dictionaries of several branches merged into one.

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
        named = value.call.named
        call = replace(value.call, named=Mapping({**named.entries, **assigned}, named.span, named.open))
        copies[id(value)] = Result(call)
        return copies[id(value)]
    if isinstance(value, Choice) and all(isinstance(option, Mapping) for option in value.alternatives):
        merged = settled(value.alternatives[0], {})
        for option in value.alternatives[1:]:
            merged = _merged(merged, settled(option, {}), value.why)
        return merged
    return value


def _merged(first: Value, second: Value, why: Reason) -> Value:
    """What two branches agree on."""
    if same(first, second) or not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return choice(first, second, why=why)
    merged = Mapping({}, first.span, first.open or second.open)
    for key, entry in (second.entries | first.entries).items():
        values = [table.entries[key].value if key in table.entries else Unknown(why) for table in (first, second)]
        merged.entries[key] = replace(entry, value=_merged(values[0], values[1], why))
    return merged


def shown(node: ast.expr) -> str:
    """The text of an expression, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def reason(value: Value, depth: int = 0) -> str:
    """Why `value` is not known, as a clause: "it depends on `args.large`"."""
    if depth > _MAX_OPTIONS:
        return _AT_RUN_TIME
    if isinstance(value, (Unknown, Choice)) and value.why:
        return value.why if isinstance(value.why, str) else f"it depends on `{shown(value.why)}`"
    if isinstance(value, Argument):
        default = f", {value.default.value!r} by default" if isinstance(value.default, Constant) else ""
        return f"it is the command-line option --{value.name.replace('_', '-')}{default}"
    if isinstance(value, Result):
        return _reason_of_call(value.call, depth)
    if isinstance(value, Item) and isinstance(value.owner, Mapping) and isinstance(value.key, Constant):
        return value.owner.open or f"the key {value.key.value!r} is not in the dictionary"
    if isinstance(value, Item) and isinstance(value.owner, External) and value.owner.path == "os.environ":
        return _variable(value.key)
    if isinstance(value, External):
        return f"{value.path} is defined elsewhere"
    if isinstance(value, (Mapping, Collection)) and value.open:
        return value.open
    parts = _parts(value)
    return next((reason(part, depth + 1) for part in parts if not _is_plain(part)), _AT_RUN_TIME)


def _reason_of_call(call: Call, depth: int) -> str:
    if call.name in ("os.environ.get", "os.getenv"):
        return _variable(call.argument("key", 0))
    if isinstance(call.receiver, (Unknown, Argument, Choice, Operation)):
        return reason(call.receiver, depth + 1)
    if isinstance(call.receiver, (Constant, Mapping, Collection)) or (call.name in _OF_DATA and call.arguments):
        arguments = (*call.arguments, *call.keywords.values())
        unknown = next((argument for argument in arguments if not _is_plain(argument)), None)
        if unknown is not None:
            return reason(unknown, depth + 1)
    name = call.name or call.method
    if isinstance(call.receiver, Result) and call.receiver.call.name:
        name = f"{call.receiver.call.name}.{call.method}"
    return f"what {name or 'the call'}(...) returns is known only when it runs"


def _variable(key: Value | None) -> str:
    name = f" {key.value}" if isinstance(key, Constant) else ""
    return f"it is read from the environment variable{name}"


def _parts(value: Value) -> list[Value]:
    """The values that decide whether `value` is known."""
    if isinstance(value, Mapping):
        return list(value.values().values())
    if isinstance(value, Collection):
        return value.items
    if isinstance(value, (Operation, Choice)):
        return list(value.operands if isinstance(value, Operation) else value.alternatives)
    if isinstance(value, Item):
        return [value.owner, *([] if value.key is None else [value.key])]
    return [value.owner] if isinstance(value, Member) else []


def _is_plain(value: Value) -> bool:
    try:
        plain(value)
    except LookupError:
        return False
    return True
