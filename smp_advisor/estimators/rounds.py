"""Corrections of a document: safe changes in rounds, as long as they reduce the defects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.checks import CORRECTABLE, Case
from smp_advisor.estimators.corrections import corrected_text
from smp_advisor.estimators.documents import Document, with_text
from smp_advisor.estimators.sources.recipe import yaml_table
from smp_advisor.findings.catalog import catalog
from smp_advisor.reading.edits import parses

if TYPE_CHECKING:
    from smp_advisor.estimators.cases import Terms
    from smp_advisor.estimators.checks import Hit

__all__ = ["as_pasted", "changed_by", "corrected"]

_ROUNDS = 40


def corrected(document: Document, terms: Terms) -> str:
    """The text with all safe changes. Each round has one change, because it can reveal the next defect."""
    if not document.correctable:
        return document.pasted
    text = document.source.text
    for _ in range(_ROUNDS):
        better = _round(with_text(document, text), terms)
        if better is None:
            break
        text = better
    return as_pasted(document, text) or document.pasted


def changed_by(document: Document, case: Case, hit: Hit) -> str | None:
    """The text with the changes for one defect; None if they have no place, or the result is not readable."""
    if not hit.changes:
        return None
    text = corrected_text(document.source.text, document.dialect, case.configuration, hit.changes)
    return None if text is None or text == document.source.text or not _readable(document, text) else text


def _round(document: Document, terms: Terms) -> str | None:
    """The text with the first change that leaves fewer errors and warnings."""
    try:
        before = _defects(terms.cases(document))
    except AdvisorError:
        return None
    for case, hit in before:
        text = changed_by(document, case, hit)
        if text is None:
            continue
        try:
            after = _defects(terms.cases(with_text(document, text)))
        except AdvisorError:
            continue
        if _weight(after) < _weight(before):
            return text
    return None


def _defects(cases: list[Case]) -> list[tuple[Case, Hit]]:
    """Defects that a change can correct. Memory is estimated once, for the report."""
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
