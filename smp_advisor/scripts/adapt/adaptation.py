"""The result of an adaptation: the new source, each change with its reason, and the manual to-do list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from smp_advisor.proving.proof import Proof

__all__ = ["AdaptError", "Adaptation", "Hunk"]


class AdaptError(AdvisorError):
    """The script is not valid Python source, or the library has no documented steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunk:
    """The change made by one documented step."""

    title: str
    explanation: str
    """Why the library requires the step."""
    url: str
    """Page of the developer guide that documents the step."""
    diff: str
    """Unified diff of this step alone, relative to the result of the previous steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptation:
    """A plain PyTorch script, rewritten for a library."""

    path: str
    """Path of the script; ``<source>`` if it was passed as text."""
    source: str
    """The adapted script."""
    diff: str
    """Unified diff from the original script; empty if nothing changed."""
    hunks: tuple[Hunk, ...]
    """The steps in order: their diffs, applied one after the other, give `source`."""
    todo: tuple[str, ...]
    """Changes that must be made by hand, one sentence or more each."""
    proof: Proof | None = None
    """Comparison of both scripts; None if it was not requested or nothing changed."""

    def __str__(self) -> str:
        counts = [(len(self.hunks), "change"), (len(self.todo), "manual to-do")]
        lines = [f"{self.path}: {', '.join(f'{count} {word}' + 's' * (count != 1) for count, word in counts)}"]
        for hunk in self.hunks:
            lines += ["", f"{hunk.title}. {hunk.explanation}", f"  {hunk.url}", hunk.diff.rstrip()]
        if self.todo:
            lines += ["", "To do by hand:", *(f"- {sentence}" for sentence in self.todo)]
        if self.proof is not None:
            lines += ["", "Proof:", str(self.proof)]
        return "\n".join(lines)
