"""Changes of branches: undone before the other branch is followed, and joined after both."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.data import shown
from smp_advisor.reading.values import (
    Choice,
    Collection,
    Constant,
    Entry,
    Mapping,
    Result,
    Unknown,
    Value,
    choice,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.values import Reason

__all__ = ["ABSENT", "Changes", "Journal", "joined", "settled"]

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
            self._open[-1].setdefault((id(owner), key), Change(owner, key, _read(owner, key)))
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
                changes[place] = replace(change, after=_read(change.owner, change.key))
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
    """The changes of two branches of which one has run."""
    both: Changes = {}
    for place, change in (first | second).items():
        now = _read(change.owner, change.key)
        sides = [branch[place].after if place in branch else now for branch in (first, second)]
        both[place] = replace(change, after=_either(sides[0], sides[1], why))
        if change.key == "items" and isinstance(change.owner, Collection) and len(sides[0]) != len(sides[1]):
            text = why if isinstance(why, str) else f"its length depends on `{shown(why)}`"
            both[id(change.owner), "open"] = Change(change.owner, "open", change.owner.open, change.owner.open or text)
    return both


def _read(owner: Any, key: Any) -> Any:
    return owner.get(key, ABSENT) if isinstance(owner, dict) else getattr(owner, key)


def _either(first: Any, second: Any, why: Reason) -> Any:
    """Value of a name, key or field after one of two branches."""
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
    """One value for two branches: dictionaries are merged by key."""
    if same(first, second) or not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return choice(first, second, why=why)
    merged = Mapping({}, first.span, first.open or second.open)
    for key, entry in (second.entries | first.entries).items():
        values = [table.entries[key].value if key in table.entries else Unknown(why) for table in (first, second)]
        merged.entries[key] = replace(entry, value=_merged(values[0], values[1], why))
    return merged
