"""What adapting a script gives: the new text, each change with its reason, and what is left to do by hand."""

from __future__ import annotations

from dataclasses import dataclass

from smp_advisor.errors import AdvisorError

__all__ = ["AdaptError", "Adaptation", "Hunk"]


class AdaptError(AdvisorError):
    """A script that cannot be read as Python source, or a plan without documented steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunk:
    """One documented step, with the change it made."""

    title: str
    explanation: str
    """Why the library needs it, for a person who has not read the page."""
    url: str
    """Page of the developer guide that asks for it."""
    diff: str
    """Unified diff of this step alone: from the text that the steps before it left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptation:
    """A plain PyTorch script, rewritten for a library."""

    path: str
    """File the script was read from; ``<source>`` for text."""
    source: str
    """The adapted script."""
    diff: str
    """Unified diff from the script as it was; empty where nothing changed."""
    hunks: tuple[Hunk, ...]
    """The steps in the order they were taken: applied one after the other they give `source`."""
    todo: tuple[str, ...]
    """What could not be placed without a guess, one sentence each."""

    def __str__(self) -> str:
        lines = [f"{self.path}: {len(self.hunks)} changes, {len(self.todo)} to do by hand"]
        for hunk in self.hunks:
            lines += ["", f"{hunk.title}. {hunk.explanation}", f"  {hunk.url}", hunk.diff.rstrip()]
        if self.todo:
            lines += ["", "To do by hand:", *(f"- {sentence}" for sentence in self.todo)]
        return "\n".join(lines)
