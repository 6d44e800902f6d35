"""The plans that were on screen, in order, with undo and redo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.live.control_state import ControlState

__all__ = ["LONGEST", "Entry", "History"]

LONGEST = 200
"""Number of plans in a history. The oldest is dropped first."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A plan that was on screen."""

    recommended: Advice
    """The recommendation at that time, which another workload replaces."""
    state: ControlState
    """Values of the controls, which can be combined."""
    summary: str
    """The change that led to the plan, with its effect."""
    gesture: str = ""
    """Gesture of a view, such as the drag of a slider, whose moves are one entry; empty for a change from Python."""

    def shows(self, entry: Entry) -> bool:
        """Whether both are the same plan of the same recommendation."""
        return self.recommended is entry.recommended and self.state.is_at(entry.state)


@dataclass(frozen=True, kw_only=True)
class History:
    """Entries in order, and the position of the plan on screen. At least one entry."""

    entries: tuple[Entry, ...]
    position: int = 0

    @property
    def current(self) -> Entry:
        """The entry at the position."""
        return self.entries[self.position]

    @property
    def can_undo(self) -> bool:
        """Whether there is an earlier entry."""
        return self.position > 0

    def entered(self, entry: Entry) -> History:
        """The history with a new last entry.

        Undone entries are dropped. Moves of one gesture replace each other, and a gesture that ends where it started
        leaves no entry. The present plan is not entered again.
        """
        before = self.entries[: self.position + 1]
        if len(before) > 1 and entry.gesture and entry.gesture == self.current.gesture:
            before = before[:-1]
        if before[-1].shows(entry):
            return self if len(before) == self.position + 1 else replace(self, entries=before, position=len(before) - 1)
        entries = (*before, entry)[-LONGEST:]
        return replace(self, entries=entries, position=len(entries) - 1)

    def moved(self, steps: int) -> History:
        """The history at another position; the nearest one that exists."""
        return replace(self, position=min(max(self.position + steps, 0), len(self.entries) - 1))
