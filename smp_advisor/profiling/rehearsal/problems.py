"""Problems that a rehearsal finds, as sentences for the user."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Problem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A property of the model, its loss or its data that breaks the planned job."""

    kind: str
    """Cause in two or three words: ``sum loss``."""
    text: str
    parameter: str = ""
    """Name of the parameter with the largest difference; empty if the problem is in no single parameter."""
    rank: int | None = None
    """First rank with the problem; None if one process has it already."""
    line: str = ""
    """The user's file and line; empty if unknown."""

    def __str__(self) -> str:
        details = [
            f"parameter {self.parameter}" if self.parameter else "",
            "" if self.rank is None or self.text.startswith(f"Rank {self.rank} ") else f"first at rank {self.rank}",
            self.line,
        ]
        details = [detail for detail in details if detail]
        return f"{self.text} ({'; '.join(details)})" if details else self.text
