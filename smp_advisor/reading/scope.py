"""Names and what they are bound to while the script is followed."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smp_advisor.reading.values import External, Unknown

if TYPE_CHECKING:
    from smp_advisor.reading.values import Value

__all__ = ["Scope"]

_BUILTINS = frozenset(dir(builtins))


@dataclass(slots=True, eq=False)
class Scope:
    """Bindings of one function call or module, inside of another scope."""

    parent: Scope | None = None
    names: dict[str, Value] = field(default_factory=dict)
    is_class: bool = False
    outer: frozenset[str] = frozenset()
    """Names that ``global`` or ``nonlocal`` sends to a scope further out."""

    def find(self, name: str) -> Value | None:
        """What the name is bound to here or further out; None where nothing binds it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.names[name]
            scope = scope.parent
        return None

    def read(self, name: str) -> Value:
        """Like `find`, with Python's own names, and `Unknown` for the rest."""
        found = self.find(name)
        if found is not None:
            return found
        return External(name) if name in _BUILTINS else Unknown()

    def bind(self, name: str, value: Value) -> None:
        """Assign."""
        scope: Scope = self
        if name in self.outer:
            while scope.parent is not None and (scope is self or name not in scope.names):
                scope = scope.parent
        scope.names[name] = value
