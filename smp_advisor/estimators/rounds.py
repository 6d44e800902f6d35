"""Corrections of a document: safe changes in rounds, as long as they reduce the defects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.checks import CORRECTABLE, Case
from smp_advisor.estimators.corrections import corrected_text
from smp_advisor.estimators.documents import Document, with_text
from smp_advisor.estimators.sources.yaml_values import yaml_table
from smp_advisor.findings.catalog import catalog
from smp_advisor.reading.edits import parses

if TYPE_CHECKING:
    from smp_advisor.estimators.cases import Terms
    from smp_advisor.estimators.checks import Hit

__all__ = ["as_pasted", "changed_by", "corrected"]

_ROUNDS = 40
_MOST_WORK = 2_000
"""Defects, thousands of characters and jobs (times 5) in all texts that one search of corrections reads."""


def corrected(document: Document, terms: Terms) -> tuple[str, bool]:
    """The text with all safe changes, and whether the search was complete.

    Each round has one change, because it can reveal the next defect.
    """
    if not document.correctable:
        return document.pasted, True
    text = document.source.text
    before, work, complete = _defects(document, terms) or [], 0, False
    for _ in range(_ROUNDS):
        better, now = with_text(document, text), before
        for case, hit in before:
            work += 1 + len(text) // 1000
            trial = changed_by(better, case, hit) if work <= _MOST_WORK else None
            if trial is None:
                continue
            work += len(before) + 5 * len({id(case) for case, _ in before})
            after = _defects(with_text(document, trial), terms)
            if after is not None and _weight(after) < _weight(before):
                text, now = trial, after
                break
        if now is before:
            complete = work <= _MOST_WORK
            break
        before = now
    return as_pasted(document, text) or document.pasted, complete or not before


def changed_by(document: Document, case: Case, hit: Hit) -> str | None:
    """The text with the changes for one defect; None if they have no place, or the result is not readable."""
    if not hit.changes:
        return None
    text = corrected_text(document.source.text, document.dialect, case.configuration, hit.changes)
    return None if text is None or text == document.source.text or not _readable(document, text) else text


def _defects(document: Document, terms: Terms) -> list[tuple[Case, Hit]] | None:
    """Defects that a change can correct; None if the text has no job. Memory is estimated once, for the report."""
    try:
        cases = terms.cases(document)
    except AdvisorError:
        return None
    return [(case, hit) for case in cases for check in CORRECTABLE for hit in check(case)]


def _weight(defects: list[tuple[Case, Hit]]) -> tuple[int, ...]:
    """Names first, then types, then combinations: correct names and types can reveal other defects."""
    errors = sum(catalog()[hit.id].wordings[hit.variant].severity == "error" for _, hit in defects)
    names = sum(hit.rule in ("unknown", "version") for _, hit in defects)
    return names, sum(hit.id == "EST501" for _, hit in defects), errors, len(defects)


def _readable(document: Document, text: str) -> bool:
    if document.dialect == "python":
        return parses(text)
    try:
        if document.dialect == "json":
            json.loads(text)
        else:
            yaml_table(text)
    except (ValueError, RecursionError):
        return False
    return True


def as_pasted(document: Document, text: str) -> str | None:
    """The changed text with the magics restored; None if this is not possible."""
    if document.source.text.rstrip("\n") == document.pasted.rstrip("\n"):
        ending = "\n" if document.pasted.endswith("\n") else ""
        return text.rstrip("\n") + ending
    # Only complete lines differ, with magics and ellipses. Their replacements identify them.
    blanked, pasted = document.source.text.rstrip("\n").split("\n"), document.pasted.rstrip("\n").split("\n")
    dropped = max(0, len(blanked) - len(pasted))  # the magic that checks the cell
    original = {line: two for line, two in zip(blanked[dropped:], pasted, strict=False) if line != two}
    lines = text.rstrip("\n").split("\n")[dropped:]
    return "\n".join(original.get(line, line) for line in lines) + ("\n" if document.pasted.endswith("\n") else "")
