"""Findings in the notebook: by severity, each foldable; everything from the script escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from smp_advisor.scripts.text import counts

if TYPE_CHECKING:
    from smp_advisor.scripts.finding import Finding, Severity
    from smp_advisor.scripts.report import Report

__all__ = ["CODE_BOX", "as_html"]

_GROUPS: tuple[tuple[Severity, str, str], ...] = (
    ("error", "Will fail, hang or train wrongly", "var(--jp-error-color1, #b3261e)"),
    ("warning", "Wastes memory, time or money", "var(--jp-warn-color1, #8a5300)"),
    ("info", "Worth knowing", "var(--jp-info-color1, #00618a)"),
)
_CODE = "font-family:var(--jp-code-font-family, monospace);font-size:var(--jp-code-font-size, 13px)"
CODE_BOX = (
    f"{_CODE};white-space:pre;overflow-x:auto;margin:4px 0;padding:4px 8px;"
    "background:var(--jp-layout-color2, rgba(127,127,127,.12))"
)


def as_html(report: Report) -> str:
    """The whole report; inline styles from JupyterLab's variables, with fall-backs."""
    parts = ['<div class="smp-advisor-findings">', f"<p><strong>{escape(counts(report))}</strong></p>"]
    for severity, title, colour in _GROUPS:
        found = report.of(severity)
        if found:
            rows = "".join(_finding(finding, opened=severity == "error") for finding in found)
            parts.append(
                f'<details open><summary style="cursor:pointer;color:{colour}"><strong>{title}</strong>'
                f" ({len(found)})</summary>{rows}</details>"
            )
    if report.unresolved:
        rows = "".join(
            f"<li><code>{escape(note.path)}:{note.line}</code> {escape(note.what)}</li>" for note in report.unresolved
        )
        parts.append(
            '<details><summary style="cursor:pointer">Not followed, and therefore not judged'
            f" ({len(report.unresolved)})</summary><ul>{rows}</ul></details>"
        )
    return "".join([*parts, "</div>"])


def _finding(finding: Finding, *, opened: bool) -> str:
    caret = " " * (finding.column - 1) + "^"
    place = f"{escape(finding.path)}:{finding.line}:{finding.column}"
    code = escape(f"{finding.text.replace(chr(9), ' ')}\n{caret}")
    fix = ""
    if finding.fix is not None:
        fix = (
            f'<details><summary style="cursor:pointer">Fix: {escape(finding.fix.description)}</summary>'
            f'<pre style="{CODE_BOX}">{escape(finding.fix.diff)}</pre></details>'
        )
    return (
        f'<details{" open" if opened else ""} style="margin:4px 0 4px 16px"><summary style="cursor:pointer">'
        f"<code>{finding.id}</code> {escape(finding.message)} <small><code>{place}</code></small></summary>"
        f'<div style="margin-left:16px"><pre style="{CODE_BOX}">{code}</pre>'
        f"<p>{escape(finding.consequence)} <strong>Instead:</strong> {escape(finding.remedy)}</p>"
        f'<p><a href="{escape(finding.source_url, quote=True)}" target="_blank" rel="noopener">'
        f"{escape(finding.source_title)}</a></p>{fix}</div></details>"
    )
