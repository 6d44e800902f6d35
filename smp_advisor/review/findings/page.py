"""The page of a check: the strip with its verdict, the tank, findings by certainty, and what changed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from secrets import token_hex
from textwrap import dedent
from typing import TYPE_CHECKING

from smp_advisor.core.sheet import State, changed_values, heading, sheet, strip, tank, title, verdict_strip
from smp_advisor.core.words import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.review.findings.finding import Finding, Severity
    from smp_advisor.review.findings.report import Report


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The strip of a check."""

    state: State
    words: str
    sentence: str = ""
    """The consequence."""
    memory: tuple[float, float] | None = None
    """Needed and usable GiB per GPU; None if they are not known."""
    about: tuple[str, ...] = ()
    """The checked job, its model and its cluster."""
    call: str = ""
    """Python of the advice for the same model and cluster; empty if they are not known."""


_GROUPS: tuple[tuple[Severity, str, str], ...] = (
    ("error", "Certain to fail, hang or train incorrectly", "✗"),
    ("warning", "Costs memory, time or money", "!"),
    ("info", "Good to know", "i"),
)


def as_html(report: Report) -> str:
    """Return the page of a report. Where it runs scripts, buttons copy texts and open the advice."""
    verdict, identity = report.verdict, f"smp-{token_hex(6)}"
    count = len(report.findings)
    facts = [("", str(count), f"finding{'s' * (count > 1)}")] if count and verdict.memory else []
    open_it = "Get a plan that fits" if verdict.state == "over" and verdict.memory else "Open in the advisor"
    action = f'<span data-smp-insert="{open_it}"></span>' if verdict.call else ""
    if verdict.memory is None:
        line = strip(verdict.state, verdict.words, facts, action=action)
    else:
        line = verdict_strip(verdict.state, verdict.words, *verdict.memory, facts, action)
    call = f'<p class="smp-call"><code data-smp-text="call">{escape(verdict.call)}</code></p>' if verdict.call else ""
    sentence = f'<p class="smp-sentence">{escape(verdict.sentence)}</p>' if verdict.sentence else ""
    memory = f"{title('Memory per GPU')}{tank(*verdict.memory)}" if verdict.memory else ""
    findings = "".join(_group(report, *group) for group in _GROUPS)
    columns = [part for part in (f"<div>{findings}</div>" if findings else "", _changes(report)) if part]
    two = f'<div class="smp-columns">{"".join(columns)}</div>' if columns else ""
    script = files("smp_advisor.review.findings").joinpath("data/copy.js").read_text("utf-8")
    name = report.path.strip("<>").capitalize() if report.path.startswith("<") else report.path
    return sheet(
        f"Check of {report.path}",
        heading(name, verdict.about, "Checked"),
        line,
        sentence,
        call,
        memory,
        two,
        _folded("Read", _paragraphs(report.introduction)),
        _folded(
            f"Not checked, because it could not be followed ({len(report.unresolved)})",
            "".join(
                f"<li><code>{escape(note.path)}:{note.line}</code> {escape(note.what)}</li>"
                for note in report.unresolved
            ),
        ),
        f"<div data-smp-coverage>{_paragraphs(report.coverage.lines)}</div>" if report.coverage else "",
        '<span class="smp-hidden" role="status"></span>',
        name=identity,
        script=script.replace("IDENTITY", identity),
    )


def _folded(name: str, body: str) -> str:
    return f"<details><summary>{escape(name)}</summary>{body}</details>" if body else ""


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line.strip())}</p>" for line in lines)


def _group(report: Report, severity: Severity, name: str, sign: str) -> str:
    members = report.of(severity)
    if not members:
        return ""
    rows = "".join(_row(finding, sign, opened=severity == "error") for finding in members)
    return f'{title(name, str(len(members)))}<div class="smp-rows" data-severity="{severity}">{rows}</div>'


def _row(finding: Finding, sign: str, *, opened: bool) -> str:
    place = escape(f"{finding.path}:{finding.line}:{finding.column}")
    code = escape(dedent(f"{finding.text.replace(chr(9), ' ')}\n{' ' * (finding.column - 1)}^"))
    return (
        f'<details{" open" if opened else ""}><summary><i aria-hidden="true">{sign}</i> {escape(finding.message)} '
        f'<small>line {finding.line}, {finding.id}</small></summary><pre tabindex="0">{code}</pre>'
        f"<p>{escape(finding.consequence)} <b>Instead:</b> "
        f'<span data-smp-text="advice">{escape(finding.remedy)}</span></p>'
        f'<p><code data-smp-text="place">{place}</code> '
        f'<a href="{escape(finding.source_url)}" target="_blank" rel="noopener">'
        f"{escape(finding.source_title)}</a></p>{_slot('place', place)}{_slot('advice', place)}"
        f"{_fix(finding, place)}</details>"
    )


def _slot(what: str, place: str) -> str:
    """Place for the button that copies the text named `what`."""
    return f'<span data-smp-copy="{what}" data-smp-of="{place}"></span>'


def _fix(finding: Finding, place: str) -> str:
    if finding.fix is None:
        return ""
    return (
        f"<details><summary>Fix: {escape(finding.fix.description)}</summary>"
        f'<pre tabindex="0" data-smp-text="diff">{escape(finding.fix.diff)}</pre>'
        f"{_slot('diff', place)}</details>"
    )


def _changes(report: Report) -> str:
    """Return the values that the corrected text changes, and its diff."""
    if not report.diff:
        return ""
    before, after = report.texts
    diff = f'<pre tabindex="0" data-smp-text="diff">{escape(report.diff)}</pre>{_slot("diff", report.path)}'
    return (
        f"<div>{title('Fixes', 'only the values that change')}{changed_values(before, after)}"
        f"{_folded('Diff', diff)}{_folded('Configuration after the fixes', _paragraphs(report.outcome))}</div>"
    )
