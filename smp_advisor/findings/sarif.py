"""Findings in the Static Analysis Results Interchange Format, version 2.1.0 (OASIS)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from smp_advisor._version import __version__
from smp_advisor.findings.catalog import catalog

if TYPE_CHECKING:
    from smp_advisor.findings.finding import Finding
    from smp_advisor.findings.report import Report

__all__ = ["as_sarif"]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def as_sarif(report: Report) -> dict[str, Any]:
    """One run with its rules and results."""
    used = sorted({finding.id for finding in report.findings})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "smp_advisor",
                        "version": __version__,
                        "rules": [_rule(identifier) for identifier in used],
                    }
                },
                **({"properties": {"coverage": report.coverage.plain()}} if report.coverage is not None else {}),
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, used.index(finding.id)) for finding in report.findings],
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "note",
                                "message": {"text": note.what},
                                "locations": [_location(note.path, note.line)],
                            }
                            for note in report.unresolved
                        ],
                    }
                ],
            }
        ],
    }


def _rule(identifier: str) -> dict[str, Any]:
    text = catalog()[identifier]
    title, url = text.source
    return {
        "id": identifier,
        "shortDescription": {"text": text.title},
        "fullDescription": {"text": text.consequence},
        "help": {"text": f"{text.remedy} {title}: {url}"},
        "helpUri": url,
        "defaultConfiguration": {"level": _LEVELS[text.severity]},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    return {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message} {finding.consequence} Instead: {finding.remedy}"},
        "locations": [_location(finding.path, finding.line, finding.column, finding.text)],
    }


def _location(path: str, line: int, column: int | None = None, text: str | None = None) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": line}
    if column is not None:
        region["startColumn"] = column
    if text is not None:
        region["snippet"] = {"text": text}
    file, _, cell = path.partition("#")
    uri = quote(file.replace("\\", "/"), safe="/:") + (f"#{cell}" if cell else "")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
