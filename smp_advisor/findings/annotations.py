"""Findings as annotations of a GitHub workflow: one command per line of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.findings.finding import Finding
    from smp_advisor.findings.report import Report

__all__ = ["as_annotations"]

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})
"""Characters that workflow commands escape (actions/toolkit, packages/core/src/command.ts)."""


def as_annotations(reports: Iterable[Report], problems: Iterable[str] = ()) -> str:
    """Workflow commands that mark findings in the changed files; `problems` are files that could not be checked."""
    lines = [f"::error title=smp_advisor::{problem.translate(_DATA)}" for problem in problems]
    return "\n".join(lines + [_annotation(finding) for report in reports for finding in report.findings])


def _annotation(finding: Finding) -> str:
    file, _, cell = finding.path.partition("#cell-")
    place = f"cell {cell}, line {finding.line}: " if cell else ""
    properties = {"file": file.replace("\\", "/"), "title": finding.id}
    if not cell:  # the lines of a notebook's file are those of its JSON
        properties |= {"line": str(finding.line), "col": str(finding.column)}
        if finding.end_line is not None and finding.end_column is not None:
            properties["endLine"] = str(finding.end_line)
            if finding.end_line == finding.line:  # the annotation takes columns of one line only
                properties["endColumn"] = str(max(finding.column, finding.end_column - 1))
    shown = ",".join(f"{name}={value.translate(_PROPERTY)}" for name, value in properties.items())
    message = f"{place}{finding.message} {finding.consequence} Instead: {finding.remedy}"
    return f"::{_COMMANDS[finding.severity]} {shown}::{message.translate(_DATA)}"
