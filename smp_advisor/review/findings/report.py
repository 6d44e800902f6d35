"""The report of a check as text with carets, HTML for a notebook, and JSON."""

from __future__ import annotations

import json
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, overload

from smp_advisor.core.words import listed, one_line
from smp_advisor.review.findings.code_hosts import as_sarif
from smp_advisor.review.findings.page import Verdict, as_html

if TYPE_CHECKING:
    from smp_advisor.core.sheet import State
    from smp_advisor.review.findings.finding import Finding, Severity
    from smp_advisor.review.reading.source import Unresolved


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A role in the script, and the code that has it."""

    role: str
    """Plural, as in "models"."""
    places: tuple[str, ...]
    """Each as "what (file:line)"; empty if the check saw none."""

    def __str__(self) -> str:
        return f"{self.role}: {listed(self.places) or 'none seen'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Parts of a script that a check saw, and its assumptions."""

    libraries: tuple[str, ...]
    """Libraries whose rules were applied."""
    parts: tuple[Part, ...]
    assumed: tuple[str, ...]
    """Assumptions, one sentence each."""
    outside: tuple[str, ...] = ()
    """Calls of packages that are not among the files and that no rule knows, by their dotted names."""

    @property
    def lines(self) -> list[str]:
        """The statement as lines of text."""
        rules = ", ".join(self.libraries) or "none of a library: the script uses none that has rules"
        lines = [f"Rules applied: {rules}."] + [f"Seen: {'; '.join(map(str, self.parts))}."] * bool(self.parts)
        names = listed(self.outside)
        lines += [f"Not followed, because their code is in other packages: {names}."] * bool(self.outside)
        return lines + [f"Assumed: {' '.join(self.assumed)}"] * bool(self.assumed)


@dataclass(frozen=True, slots=True, repr=False)
class Report(Sequence["Finding"]):
    """Findings in the order of the file, and the code that could not be followed (`unresolved`)."""

    findings: tuple[Finding, ...]
    unresolved: tuple[Unresolved, ...]
    path: str
    coverage: Coverage | None = field(default=None, kw_only=True)
    """Parts of the script that the check saw, and its assumptions."""

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def introduction(self) -> list[str]:
        """Lines above the findings: the configuration that was read."""
        return []

    @property
    def diff(self) -> str:
        """Unified diff from the text to the corrected text; empty if nothing changes."""
        return ""

    @property
    def outcome(self) -> list[str]:
        """Lines below the diff: the configuration in the corrected text."""
        return []

    @property
    def totals(self) -> str:
        """The number of findings of each severity: "1 error, 2 warnings"; empty without findings."""
        words: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
        numbers = [(len(self.of(severity)), word) for severity, word in words.items()]
        return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in numbers if count)

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [finding for finding in self.findings if finding.severity == severity]

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        return str(self)

    @property
    def texts(self) -> tuple[str, str]:
        """The text and the corrected text."""
        return "", ""

    @property
    def verdict(self) -> Verdict:
        """The strip of its page: the number of findings of the worst severity, or the meaning of none."""
        words = {"error": "error", "warning": "warning", "info": "note"}
        states: dict[Severity, State] = {"error": "over", "warning": "risk", "info": "fits"}
        for severity, state in states.items():
            if count := len(self.of(severity)):
                return Verdict(state=state, words=f"{count} {words[severity]}{'s' * (count > 1)}")
        text = nothing_found(self)
        state = "none" if self.unresolved or text.startswith("nothing was checked") else "fits"
        return Verdict(state=state, words="Nothing found", sentence=f"{text[:1].upper()}{text[1:]}.")

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_json(self) -> str:
        """Return the findings and the unresolved code as JSON."""
        data: dict[str, Any] = {
            "path": self.path,
            "findings": [finding.plain() for finding in self.findings],
            "unresolved": [asdict(note) for note in self.unresolved],
        }
        if self.coverage is not None:
            data["coverage"] = asdict(self.coverage)
        return json.dumps(data, indent=2, ensure_ascii=False)

    def to_sarif(self) -> str:
        """Return the findings in SARIF 2.1.0, for code hosts and editors."""
        return json.dumps(as_sarif(self), indent=2, ensure_ascii=False)


_WIDTH = 100
_LONGEST_LINE = 160


def as_text(report: Report) -> str:
    """Return the report as plain text."""
    parts = ["\n".join(map(_folded, report.introduction))] if report.introduction else []
    parts += [_text_of(finding) for finding in report.findings]
    if report.unresolved:
        notes = [_folded(f"  {one_line(note.path)}:{note.line}: {one_line(note.what)}") for note in report.unresolved]
        parts.append("\n".join(["Not checked, because it could not be followed:", *notes]))
    parts.append("\n".join([counts(report), *(f"  {one_line(line)}" for line in statement(report))]))
    if report.diff:
        parts.append("\n".join([f"Corrected:\n{report.diff}", *map(_folded, report.outcome)]))
    return "\n\n".join(parts)


def statement(report: Report) -> list[str]:
    """Return the lines on what the check saw, assumed and did not follow."""
    if report.coverage is None:
        return []
    open_places = len(report.unresolved)
    note = f"Not followed: {open_places} place{'s' if open_places > 1 else ''}, listed above."
    return [*report.coverage.lines, *([note] if open_places else [])]


def nothing_found(report: Report) -> str:
    """Return the meaning of "no findings": the rules that ran, and what they could not follow."""
    coverage, places = report.coverage, len(report.unresolved)
    left = f"; {places} place{'s were' if places > 1 else ' was'} not followed" if places else ""
    if coverage is not None and coverage.outside:
        packages = sorted({name.partition(".")[0] for name in coverage.outside})
        left += f"; calls of {listed(packages)} were not followed"
    if coverage is None:
        return f"no findings{left}"
    has_places = any(part.places for part in coverage.parts)
    if not coverage.libraries and not has_places:
        return f"nothing was checked: it has no model, optimizer, training loop or save that a rule knows{left}"
    if not coverage.libraries:
        return f"no findings of the general rules; no rules of a library apply{left}"
    return f"no findings by the rules of {', '.join(coverage.libraries)}{left}"


def counts(report: Report) -> str:
    """Return the number of findings of each severity, in one line."""
    if not report.findings:
        return f"{one_line(report.path)}: {nothing_found(report)}."
    fixable = sum(finding.fix is not None for finding in report.findings)
    tail = f"; {fixable} with an automatic fix" if fixable else ""
    return f"{one_line(report.path)}: {report.totals}{tail}."


def _text_of(finding: Finding) -> str:
    place = f"{one_line(finding.path)}:{finding.line}:{finding.column}"
    head = f"{place}: {finding.severity} {finding.id}: {one_line(finding.message)}"
    code, column = _shown(finding)
    rows = [head, f"    {code}", "    " + " " * column + "^"]
    rows += _wrapped("", finding.consequence)
    rows += _wrapped("Instead: ", finding.remedy)
    rows += [f"    {finding.source_title}: {finding.source_url}"]
    if finding.fix is not None:
        rows.append(f"    Fix: {finding.fix.description}")
    return "\n".join(rows)


def _shown(finding: Finding) -> tuple[str, int]:
    """Return the printed line, and the column of its caret."""
    code = one_line(finding.text)
    start = 0
    if len(code) > _LONGEST_LINE:
        start = max(0, finding.column - 1 - _LONGEST_LINE // 2)
        code = ("…" if start else "") + code[start : start + _LONGEST_LINE] + "…"
        start -= bool(start)
    before = code[: max(0, finding.column - 1 - start)]
    return code, sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in before)


def _folded(text: str) -> str:
    """Return a line without breaks, on several lines whose continuations are indented."""
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    words = textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(words)


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(label + one_line(text), _WIDTH, initial_indent="    ", subsequent_indent="    ")
