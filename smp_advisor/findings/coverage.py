"""Coverage of a check: what it saw of the script, and what it assumed. Without it, no findings mean nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Coverage", "Part"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A role in the script, and the code that has it."""

    role: str
    """Plural, as in "models"."""
    places: tuple[str, ...]
    """Each as "what (file:line)"; empty if the check saw none."""

    def __str__(self) -> str:
        shown = ", ".join(self.places[:_MOST]) + (
            f" and {len(self.places) - _MOST} more" if self.places[_MOST:] else ""
        )
        return f"{self.role}: {shown or 'none seen'}"


_MOST = 4
"""Places of a role in a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Parts of a script that a check saw, and its assumptions."""

    libraries: tuple[str, ...]
    """Libraries whose rules were applied."""
    parts: tuple[Part, ...]
    assumed: tuple[str, ...]
    """Assumptions, one sentence each."""

    @property
    def lines(self) -> list[str]:
        """The statement as lines of text."""
        rules = ", ".join(self.libraries) or "none of a library: the script uses none that has rules"
        lines = [f"Rules applied: {rules}.", "Seen: " + "; ".join(map(str, self.parts)) + "."]
        return lines + [f"Assumed: {' '.join(self.assumed)}"] * bool(self.assumed)

    def plain(self) -> dict[str, object]:
        """The statement as plain data."""
        return asdict(self)
