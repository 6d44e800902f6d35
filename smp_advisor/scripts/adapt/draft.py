"""The script during its adaptation: its current source and the to-do list."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.survey import Survey

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.scripts.adapt.edits import Edits
    from smp_advisor.scripts.adapt.target import Target

__all__ = ["Draft", "Step", "unified_diff"]


class Draft:
    """State passed from step to step. Each step reads `survey`, collects edits, and applies them."""

    def __init__(self, module: cst.Module, target: Target, file: Path | None = None) -> None:
        self.module = module
        self.target = target
        self.file = file
        """The script; None if it was passed as text."""
        self.todo: list[str] = []
        self.abandoned = False
        """Whether the script cannot be adapted at all."""
        self._survey: Survey | None = None

    @property
    def survey(self) -> Survey:
        """Index of the current source."""
        if self._survey is None:
            self._survey = Survey(self.module)
        return self._survey

    def apply(self, edits: Edits) -> None:
        """Make the edits; nodes read before are no longer part of the script."""
        self.module = edits.apply(self.module)
        self._survey = None

    def add_todo(self, sentence: str) -> None:
        """Add a sentence to the to-do list, unless it is there already."""
        if sentence not in self.todo:
            self.todo.append(sentence)

    def abandon(self, sentence: str) -> None:
        """Leave the script unchanged, for the reason in the sentence."""
        self.todo = [sentence]
        self.abandoned = True

    def excerpt(self, node: cst.CSTNode) -> str:
        """First line of the statement around a node, at most 80 characters, to quote in a to-do."""
        statement = self.survey.statement(node) or node
        text = cst.Module(body=[]).code_for_node(statement)
        line = next(
            (line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), ""
        )
        return line if len(line) <= 80 else line[:77] + "..."


Step = Callable[[Draft], None]


def unified_diff(before: str, after: str, path: str) -> str:
    """Diff for ``patch -p1``; empty if the texts are equal."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
