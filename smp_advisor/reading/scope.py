"""Names and their values while a file is followed."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smp_advisor.reading.values import External, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.reading.values import Value

__all__ = ["Scope"]

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
        """Value of the name here or further out; None if it is not bound."""
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
        """The names that an assignment to `name` changes."""
        scope: Scope = self
        if name in self.outer:
            while scope.parent is not None and (scope is self or name not in scope.names):
                scope = scope.parent
        return scope.names
