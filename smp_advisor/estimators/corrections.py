"""Corrections of a document in its own text: safe changes in rounds, as long as they reduce the defects."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import json_values
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.checks import CORRECTABLE, Case
from smp_advisor.estimators.documents import Document, with_text, yaml_table
from smp_advisor.review.findings.catalog import catalog
from smp_advisor.review.reading.module import parses
from smp_advisor.review.reading.values import Constant, Mapping

if TYPE_CHECKING:
    from smp_advisor.estimators.cases import Terms
    from smp_advisor.estimators.checks import Change, Hit
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.documents import Dialect
    from smp_advisor.review.reading.source import Span


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters ``start`` to ``end`` of the text become ``text``."""

    start: int
    end: int
    text: str


_LITERAL = re.compile(r"-?[\w.+-]+|[rbfu]?(\"[^\"\n]*\"|'[^'\n]*')", re.IGNORECASE)
_SCIENTIFIC = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE]\+?[0-9]+")


def _edits(text: str, dialect: Dialect, change: Change, configuration: Configuration) -> list[Edit | None]:
    entry = change.table.entries.get(change.key)
    if entry is None:
        return _addition(text, dialect, change) if change.action == "set" else [None]
    if change.action == "remove":
        return [_removal(text, change.table, change.key)]
    if change.action == "rename":
        if entry.key_span is not None:
            return [Edit(entry.key_span.start, entry.key_span.end, literal(change.value, dialect, text))]
        if entry.span is None or not re.match(rf"{re.escape(change.key)}\s*=", text[entry.span.start :]):
            return [None]
        return [Edit(entry.span.start, entry.span.start + len(change.key), change.value)]
    shared = isinstance(entry.value, Constant) and any(
        isinstance(there.value, Constant) and there.value.span == entry.value.span and there.span != entry.span
        for container in (configuration.tables.values() if entry.value.span is not None else ())
        for name, there in container.entries.items()
        if not (container is change.table and name == change.key)
    )
    # The literal, wherever it is assigned, else the expression after the key.
    literal_span = entry.value.span if isinstance(entry.value, Constant) and not shared else None
    is_literal = literal_span is not None and _LITERAL.fullmatch(text[literal_span.start : literal_span.end])
    span = literal_span if is_literal else entry.value_span
    if span is None:
        return [None]
    new = literal(change.value, dialect, text)
    old = text[span.start : span.end]
    if (
        dialect == "python"
        and isinstance(change.value, int)
        and _SCIENTIFIC.fullmatch(old)
        and int(float(old)) == change.value
    ):
        new = f"int({old})"  # the usual form for round numbers
    return [Edit(span.start, span.end, new)]


def literal(value: Any, dialect: Dialect, text: str = "") -> str:
    """`value` in the language of the text, with its preferred quotes."""
    if dialect in ("json", "yaml"):
        return json.dumps(value)
    if isinstance(value, str):
        shown = repr(value)
        double = text.count('"') >= text.count("'")
        return json.dumps(value, ensure_ascii=False) if double and "\\" not in shown and '"' not in value else shown
    if isinstance(value, dict):
        inner = ", ".join(
            f"{literal(key, dialect, text)}: {literal(item, dialect, text)}" for key, item in value.items()
        )
        return f"{{{inner}}}"
    return repr(value)


def _addition(text: str, dialect: Dialect, change: Change) -> list[Edit | None]:
    """Return the edit that adds an entry to a dictionary or to the arguments of a call; [None] in other forms."""
    span = change.table.span
    if span is None or dialect == "yaml" or span.end > len(text) or text[span.end - 1] not in "})":
        return [None]
    brace = text[span.end - 1] == "}"  # a dictionary, not a call
    if brace != (text[span.start] == "{"):
        return [None]
    value = literal(change.value, dialect, text)
    new = f"{literal(change.key, dialect, text)}: {value}" if brace else f"{change.key}={value}"
    spans = [entry.span for entry in change.table.entries.values() if entry.span is not None]
    inside = [entry for entry in spans if span.start <= entry.start and entry.end <= span.end]
    if not inside:
        opening = text.find("{" if brace else "(", span.start) + 1
        return [Edit(opening, opening, new) if not text[opening : span.end - 1].strip() else None]
    return _after(text, max(inside, key=lambda entry: entry.end), span.end - 1, new)


def _after(text: str, last: Span, closing: int, new: str) -> list[Edit | None]:
    """Return the place after the last entry, in its style: on its own line if the entries are, after its comment."""
    remainder = _code(text[last.end : closing])
    line_start = text.rfind("\n", 0, last.start) + 1
    indent = text[line_start : last.start]
    own_lines = not indent.strip() and "\n" in text[last.end : closing]
    newline = "\r\n" if "\r\n" in text else "\n"
    if remainder.replace(",", "").strip():
        # An argument such as **more follows: insert the new entry before the last one.
        return [Edit(last.start, last.start, f"{new},{newline}{indent}" if own_lines else f"{new}, ")]
    comma = remainder.find(",")
    if not own_lines:
        place = last.end + comma + 1 if comma >= 0 else last.end
        return [Edit(place, place, f" {new}," if comma >= 0 else f", {new}")]
    # A trailing comment belongs to the entry before it.
    line_end = text.find("\n", last.end + max(comma, 0))
    line_end -= text[line_end - 1] == "\r"
    if comma >= 0:
        return [Edit(line_end, line_end, f"{newline}{indent}{new},")]
    added = f"{newline}{indent}{new}"  # without a trailing comma, like the last entry
    if line_end == last.end:
        return [Edit(last.end, last.end, f",{added}")]
    return [Edit(last.end, last.end, ","), Edit(line_end, line_end, added)]


def _removal(text: str, table: Mapping, key: str) -> Edit | None:
    """Remove an entry with its comma, and its line if it has its own."""
    entry = table.entries[key]
    span, around = entry.span, table.span
    if span is None or around is None or not (around.start <= span.start and span.end <= around.end):
        return None
    line_start = text.rfind("\n", 0, span.start) + 1
    line_end = text.find("\n", span.end)
    line_end = len(text) if line_end < 0 else line_end
    before, after = text[line_start : span.start], text[span.end : line_end]
    code = _code(after)
    if not before.strip() and re.fullmatch(r"\s*+,?\s*", code) and line_end < around.end:
        return Edit(line_start, line_end + 1, "")
    following = re.match(r"\s*,[ \t]*", text[span.end : around.end])
    if following is not None:
        end = span.end + following.end()
        last_of_line = text[end : end + 1] in ("\n", "\r")
        return Edit(line_start + len(before.rstrip()) if last_of_line else span.start, end, "")
    preceding = re.search(r",\s*$", text[around.start : span.start])
    start = span.start if preceding is None else around.start + preceding.start()
    return Edit(start, span.end, "")


def _code(text: str) -> str:
    return "\n".join(line.partition("#")[0].ljust(len(line)) for line in text.split("\n"))


_ROUNDS = 40
_MOST_WORK = 2_000
"""Defects, thousands of characters and jobs (times 5) in all texts that one search of corrections reads."""


def corrected(document: Document, terms: Terms) -> tuple[str, bool]:
    """Return the text with all safe changes, and whether the search was complete.

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
    changed = as_pasted(document, text) if text != document.source.text else None
    return changed or document.pasted, complete or not before


def changed_by(document: Document, case: Case, hit: Hit) -> str | None:
    """Return the text with the changes for one defect; None if they have no place, or the result is not readable."""
    before, configuration = document.source.text, case.configuration
    edits = [edit for change in hit.changes for edit in _edits(before, document.dialect, change, configuration)]
    text, places = before, list(dict.fromkeys(edits))  # insertions at one place keep their order
    placed = sorted((edit for edit in places if edit is not None), key=lambda edit: (edit.start, edit.end))
    overlap = any(first.end > second.start for first, second in itertools.pairwise(placed))
    for edit in () if overlap or len(placed) < len(places) else reversed(placed):
        text = text[: edit.start] + edit.text + text[edit.end :]
    if text == before or (document.dialect == "python" and not parses(text)):
        return None
    if document.dialect != "python":
        try:
            (json_values if document.dialect == "json" else yaml_table)(text)
        except (ValueError, RecursionError):
            return None
    return text


def _defects(document: Document, terms: Terms) -> list[tuple[Case, Hit]] | None:
    """Defects that a change can correct; None if the text has no job. Memory is estimated once, for the report."""
    try:
        cases = terms.read(document)[0]
    except AdvisorError:
        return None
    return [(case, hit) for case in cases for check in CORRECTABLE for hit in check(case)]


def _weight(defects: list[tuple[Case, Hit]]) -> tuple[int, ...]:
    """Return the names first, then types, then combinations: correct names and types can reveal other defects."""
    errors = sum(catalog()[hit.id].wordings[hit.variant].severity == "error" for _, hit in defects)
    names = sum(hit.rule in ("unknown", "version") for _, hit in defects)
    return names, sum(hit.id == "EST501" for _, hit in defects), errors, len(defects)


def as_pasted(document: Document, text: str) -> str | None:
    """Return the changed text with the magics restored; None if this is not possible."""
    if document.source.text.rstrip("\n") == document.pasted.rstrip("\n"):
        ending = "\n" if document.pasted.endswith("\n") else ""
        return text.rstrip("\n") + ending
    # Only complete lines differ, with magics and ellipses. Their replacements identify them.
    blanked, pasted = document.source.text.rstrip("\n").split("\n"), document.pasted.rstrip("\n").split("\n")
    dropped = max(0, len(blanked) - len(pasted))  # the magic that checks the cell
    original = {line: two for line, two in zip(blanked[dropped:], pasted, strict=False) if line != two}
    lines = text.rstrip("\n").split("\n")[dropped:]
    return "\n".join(original.get(line, line) for line in lines) + ("\n" if document.pasted.endswith("\n") else "")
