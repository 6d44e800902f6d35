"""Findings as HTML for a notebook: grouped by severity, collapsible, with all text from the script escaped."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from secrets import token_hex
from typing import TYPE_CHECKING

from smp_advisor.findings.text import counts

if TYPE_CHECKING:
    from smp_advisor.findings.finding import Finding, Severity
    from smp_advisor.findings.report import Report

__all__ = ["as_html"]

_GROUPS: tuple[tuple[Severity, str, str], ...] = (
    ("error", "Fails, hangs or trains incorrectly", "var(--jp-error-color1, #b3261e)"),
    ("warning", "Wastes memory, time or money", "var(--jp-warn-color1, #8a5300)"),
    ("info", "Information", "var(--jp-info-color1, #00618a)"),
)
_CODE = "font-family:var(--jp-code-font-family, monospace);font-size:var(--jp-code-font-size, 13px)"
_CODE_BOX = (
    f"{_CODE};white-space:pre;overflow-x:auto;margin:4px 0;padding:4px 8px;"
    "background:var(--jp-layout-color2, rgba(127,127,127,.12))"
)


_HIDDEN = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap"


def as_html(report: Report) -> str:
    """The report as HTML, with inline styles from JupyterLab's variables and fallbacks for them.

    Where the page runs scripts, buttons copy a finding's place, its advice and its diff; elsewhere a click
    selects each of these texts.
    """
    identity = f"smp-{token_hex(6)}"
    parts = [
        f'<div class="smp-advisor-findings" id="{identity}" style="position:relative">',
        *_paragraphs(report.introduction),
        f"<p><strong>{escape(counts(report))}</strong></p>",
    ]
    for severity, title, color in _GROUPS:
        findings = report.of(severity)
        if findings:
            rows = "".join(_finding(finding, opened=severity == "error") for finding in findings)
            parts.append(
                f'<details open><summary style="cursor:pointer;color:{color}"><strong>{title}</strong>'
                f" ({len(findings)})</summary>{rows}</details>"
            )
    if report.unresolved:
        rows = "".join(
            f"<li><code>{escape(note.path)}:{note.line}</code> {escape(note.what)}</li>" for note in report.unresolved
        )
        parts.append(
            '<details><summary style="cursor:pointer">Not checked, because it could not be followed'
            f" ({len(report.unresolved)})</summary><ul>{rows}</ul></details>"
        )
    if report.coverage is not None:
        parts.append(f'<div data-smp-coverage="">{"".join(_paragraphs(report.coverage.lines))}</div>')
    if report.diff:
        parts.append(
            '<details open><summary style="cursor:pointer"><strong>Corrected</strong></summary>'
            f'<pre style="{_CODE_BOX}">{escape(report.diff)}</pre>{"".join(_paragraphs(report.outcome))}</details>'
        )
    if report.findings:
        parts.append(f'<span role="status" style="{_HIDDEN}"></span>')
        parts.append(f'<script type="text/javascript">{_script(identity)}</script>')
    return "".join([*parts, "</div>"])


def _paragraphs(lines: list[str]) -> list[str]:
    return [f"<p>{escape(line.strip())}</p>" for line in lines]


def _script(identity: str) -> str:
    return files("smp_advisor.findings").joinpath("data/copy.js").read_text("utf-8").replace("IDENTITY", identity)


def _slot(what: str, place: str) -> str:
    """Place for the button that copies the text named `what`."""
    return f'<span data-smp-copy="{what}" data-smp-of="{place}"></span>'


def _finding(finding: Finding, *, opened: bool) -> str:
    caret = " " * (finding.column - 1) + "^"
    place = escape(f"{finding.path}:{finding.line}:{finding.column}", quote=True)
    code = escape(f"{finding.text.replace(chr(9), ' ')}\n{caret}")
    return (
        f'<details{" open" if opened else ""} style="margin:4px 0 4px 16px"><summary style="cursor:pointer">'
        f"<code>{finding.id}</code> {escape(finding.message)} <small><code>{place}</code></small></summary>"
        f'<div style="margin-left:16px"><pre style="{_CODE_BOX}">{code}</pre>'
        f"<p>{escape(finding.consequence)} <strong>Instead:</strong> "
        f'<span data-smp-text="advice">{escape(finding.remedy)}</span></p>'
        f'<p><code data-smp-text="place" style="user-select:all">{place}</code> '
        f'<a href="{escape(finding.source_url, quote=True)}" target="_blank" rel="noopener">'
        f"{escape(finding.source_title)}</a></p>{_buttons(place)}{_fix(finding, place)}</div></details>"
    )


def _buttons(place: str) -> str:
    return _slot("place", place) + _slot("advice", place)


def _fix(finding: Finding, place: str) -> str:
    """The diff, collapsible, or the reason why there is none."""
    if finding.fix is not None:
        style = f"{_CODE_BOX};user-select:all"
        return (
            f'<details><summary style="cursor:pointer">Fix: {escape(finding.fix.description)}</summary><div>'
            f'<pre style="{style}" tabindex="0" data-smp-text="diff">{escape(finding.fix.diff)}</pre>'
            f"{_slot('diff', place)}</div></details>"
        )
    return f"<p>No automatic fix: {escape(finding.unfixed)}.</p>" if finding.unfixed else ""
