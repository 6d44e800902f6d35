"""What an expression of the script stands for, as far as reading it tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.scope import Scope
    from smp_advisor.reading.trace import Call

__all__ = [
    "Argument",
    "Choice",
    "Class",
    "Collection",
    "Constant",
    "External",
    "Function",
    "Instance",
    "Item",
    "LocalModule",
    "Mapping",
    "Member",
    "Operation",
    "Partial",
    "Result",
    "StepMark",
    "StepOutput",
    "Unknown",
    "Value",
    "choice",
    "options",
    "something",
]

_MAX_OPTIONS = 6


@dataclass(slots=True, eq=False)
class Value:
    """Base of what an expression can stand for; compared by identity."""


@dataclass(slots=True, eq=False)
class Constant(Value):
    """A literal: number, text, truth value, None."""

    value: Any


@dataclass(slots=True, eq=False)
class Argument(Value):
    """A command-line option, which the estimator's hyperparameters may set; its literal default, if it has one."""

    name: str
    default: Value


@dataclass(slots=True, eq=False)
class External(Value):
    """Something defined outside of the script's files, by its full dotted name."""

    path: str


@dataclass(slots=True, eq=False)
class Result(Value):
    """What a call of something external returned."""

    call: Call


@dataclass(slots=True, eq=False)
class Member(Value):
    """An attribute of something that cannot be looked into."""

    owner: Value
    name: str


@dataclass(slots=True, eq=False)
class Item(Value):
    """An element of something: by key where the script subscripts, without where it iterates."""

    owner: Value
    key: Value | None


@dataclass(slots=True, eq=False)
class Operation(Value):
    """Arithmetic, comparison, formatting: its operands."""

    operator: str
    operands: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Collection(Value):
    """A tuple, list or set whose elements stand in the script."""

    items: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Mapping(Value):
    """A dictionary; `complete` where every key is known."""

    entries: dict[str, Value]
    complete: bool = True


@dataclass(slots=True, eq=False)
class StepMark:
    """How a function was decorated with ``smp.step``."""

    decorator: ast.expr
    non_split_inputs: tuple[str, ...] | None
    """None: given, but not readable."""
    tensorflow: bool


@dataclass(slots=True, eq=False)
class Function(Value):
    """A function of the script, with what it closes over."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    scope: Scope
    owner: Value | None = None
    """The object that the method is bound to."""
    step: StepMark | None = None
    static: bool = False
    home: Class | None = None


@dataclass(slots=True, eq=False)
class Partial(Value):
    """``functools.partial``: something that is called later, with some arguments given before."""

    of: Value
    arguments: tuple[Value, ...]
    keywords: dict[str, Value]
    unpacks: bool


@dataclass(slots=True, eq=False)
class Class(Value):
    """A class of the script."""

    node: ast.ClassDef
    module: Module
    scope: Scope
    bases: tuple[Value, ...]
    members: dict[str, Value] = field(default_factory=dict)

    def find(self, name: str) -> Value | None:
        """Look a member up in the class and in those of its bases that the script defines."""
        if name in self.members:
            return self.members[name]
        for base in self.bases:
            if isinstance(base, Class) and base is not self and (found := base.find(name)) is not None:
                return found
        return None

    def ancestors(self) -> Iterator[str]:
        """Dotted names of the external classes that it derives from."""
        for base in self.bases:
            if isinstance(base, External):
                yield base.path
            elif isinstance(base, Class) and base is not self:
                yield from base.ancestors()


@dataclass(slots=True, eq=False)
class Instance(Value):
    """An object of a class of the script."""

    cls: Class
    call: Call
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class StepOutput(Value):
    """What a ``smp.step`` function returns: one value a microbatch."""

    of: Value
    call: Call


@dataclass(slots=True, eq=False)
class LocalModule(Value):
    """A module beside the script."""

    module: Module


@dataclass(slots=True, eq=False)
class Choice(Value):
    """One of several, by the branch that ran."""

    alternatives: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Unknown(Value):
    """Not readable from the script."""


def options(value: Value | None) -> tuple[Value, ...]:
    """The alternatives of a choice; the value itself otherwise; none of None."""
    if value is None:
        return ()
    return value.alternatives if isinstance(value, Choice) else (value,)


def something(value: Value) -> tuple[Value, ...]:
    """The alternatives without None, where there are others: what has an attribute read or is called is not None."""
    found = options(value)
    there = tuple(option for option in found if not (isinstance(option, Constant) and option.value is None))
    return there or found


def choice(*values: Value) -> Value:
    """One of `values`: a single value where they are the same."""
    found: list[Value] = []
    for value in values:
        for option in options(value):
            same = any(option is other or _equal(option, other) for other in found)
            if not same:
                found.append(option)
    if len(found) == 1:
        return found[0]
    if len(found) > _MAX_OPTIONS:
        return Choice((*found[: _MAX_OPTIONS - 1], Unknown()))
    return Choice(tuple(found))


def _equal(one: Value, other: Value) -> bool:
    if isinstance(one, Constant) and isinstance(other, Constant):
        return type(one.value) is type(other.value) and bool(one.value == other.value)
    return isinstance(one, External) and isinstance(other, External) and one.path == other.path
