"""The script while it is being adapted: its text after the steps so far, and what they could not do."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.survey import Survey

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.edits import Edits
    from smp_advisor.scripts.adapt.target import Target

__all__ = ["Draft", "Step", "unified_diff"]


class Draft:
    """Handed from step to step. Each reads `survey`, collects edits, and applies them."""

    def __init__(self, module: cst.Module, target: Target) -> None:
        self.module = module
        self.target = target
        self.todo: list[str] = []
        self.given_up = False
        """Whether a step found that the script cannot be adapted at all."""
        self._survey: Survey | None = None

    @property
    def survey(self) -> Survey:
        """Index over the text as it stands."""
        if self._survey is None:
            self._survey = Survey(self.module)
        return self._survey

    def apply(self, edits: Edits) -> None:
        """Make the edits; nodes found before them are no longer part of the script."""
        self.module = edits.apply(self.module)
        self._survey = None

    def leave_to_do(self, sentence: str) -> None:
        """Say, once, what a person has to do."""
        if sentence not in self.todo:
            self.todo.append(sentence)

    def give_up(self, sentence: str) -> None:
        """Say why nothing can be done: the script stays as it is."""
        self.todo = [sentence]
        self.given_up = True

    def at(self, node: cst.CSTNode) -> str:
        """The first line of the statement around a node, for a sentence about it."""
        statement = self.survey.statement(node) or node
        text = cst.Module(body=[]).code_for_node(statement)
        line = next(
            (line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), ""
        )
        return line if len(line) <= 80 else line[:77] + "..."


Step = Callable[[Draft], None]


def unified_diff(before: str, after: str, path: str) -> str:
    """Diff that ``patch -p1`` takes; empty where the texts are equal."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
