"""Findings as plain text: each with its line, a caret, and the correction."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.findings.finding import Finding
    from smp_advisor.findings.report import Report

__all__ = ["as_text", "counts", "plain", "statement"]

_WIDTH = 100
_LONGEST_LINE = 160


def as_text(report: Report) -> str:
    """The report as plain text."""
    parts = ["\n".join(map(_folded, report.introduction))] if report.introduction else []
    parts += [_finding(finding) for finding in report.findings]
    if report.unresolved:
        notes = [_folded(f"  {plain(note.path)}:{note.line}: {plain(note.what)}") for note in report.unresolved]
        parts.append("\n".join(["Not checked, because it could not be followed:", *notes]))
    parts.append("\n".join([counts(report), *(f"  {plain(line)}" for line in statement(report))]))
    if report.diff:
        parts.append("\n".join([f"Corrected:\n{report.diff}", *map(_folded, report.outcome)]))
    return "\n\n".join(parts)


def statement(report: Report) -> list[str]:
    """Lines on what the check saw, assumed and did not follow."""
    if report.coverage is None:
        return []
    open_places = len(report.unresolved)
    note = f"Not followed: {open_places} place{'s' if open_places > 1 else ''}, listed above."
    return [*report.coverage.lines, *([note] if open_places else [])]


def counts(report: Report) -> str:
    """The number of findings of each severity, in one line."""
    if not report.findings:
        return f"{plain(report.path)}: no findings."
    fixable = sum(finding.fix is not None for finding in report.findings)
    tail = f"; {fixable} with an automatic fix" if fixable else ""
    return f"{plain(report.path)}: {report.totals}{tail}."


def _finding(finding: Finding) -> str:
    place = f"{plain(finding.path)}:{finding.line}:{finding.column}"
    head = f"{place}: {finding.severity} {finding.id}: {plain(finding.message)}"
    line, column = _shown(finding)
    rows = [head, f"    {line}", "    " + " " * column + "^"]
    rows += _wrapped("", finding.consequence)
    rows += _wrapped("Instead: ", finding.remedy)
    rows += [f"    {finding.source_title}: {finding.source_url}"]
    if finding.fix is not None:
        rows.append(f"    Fix: {finding.fix.description}")
    elif finding.unfixed:
        rows.append(f"    No automatic fix: {finding.unfixed}.")
    return "\n".join(rows)


def _shown(finding: Finding) -> tuple[str, int]:
    """The printed line, and the column of its caret."""
    line = plain(finding.text.replace("\t", " "))
    start = 0
    if len(line) > _LONGEST_LINE:
        start = max(0, finding.column - 1 - _LONGEST_LINE // 2)
        line = ("…" if start else "") + line[start : start + _LONGEST_LINE] + "…"
        start -= bool(start)
    before = line[: max(0, finding.column - 1 - start)]
    return line, sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in before)


def _folded(line: str) -> str:
    """A line without breaks, on several lines whose continuations are indented."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    words = textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(words)


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(label + plain(text), _WIDTH, initial_indent="    ", subsequent_indent="    ")


def plain(text: str) -> str:
    """The text without control characters, which a terminal would execute."""
    return "".join(letter if letter.isprintable() or letter == " " else "�" for letter in text)
