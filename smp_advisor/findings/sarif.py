"""Findings in the Static Analysis Results Interchange Format, version 2.1.0 (OASIS)."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from smp_advisor._version import __version__
from smp_advisor.findings.catalog import catalog

if TYPE_CHECKING:
    from smp_advisor.findings.finding import Finding
    from smp_advisor.findings.report import Report

__all__ = ["as_sarif"]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HUNK = re.compile(r"^@@ ", re.MULTILINE)
_RANGE = re.compile(r"-(\d+)(?:,(\d+))? ")
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def as_sarif(*reports: Report) -> dict[str, Any]:
    """One run with the rules and results of all reports: code hosts refuse several runs of one tool."""
    findings = [finding for report in reports for finding in report.findings]
    used = sorted({finding.id for finding in findings})
    statements = {report.path: report.coverage.plain() for report in reports if report.coverage is not None}
    repeated: Counter[str] = Counter()
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
                **({"properties": {"coverage": statements}} if statements else {}),
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, used.index(finding.id), repeated) for finding in findings],
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "note",
                                "message": {"text": note.what},
                                "locations": [_location(note.path, note.line)],
                            }
                            for report in reports
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


def _result(finding: Finding, rule: int, repeated: Counter[str]) -> dict[str, Any]:
    location = _location(finding.path, finding.line, finding)
    result = {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message} {finding.consequence} Instead: {finding.remedy}"},
        "locations": [location],
        "partialFingerprints": {"smpAdvisor/v1": _fingerprint(finding, repeated)},
    }
    changes = _replacements(finding.fix.diff) if finding.fix is not None and "#" not in finding.path else []
    if finding.fix is not None and changes:
        artifact = location["physicalLocation"]["artifactLocation"]
        result["fixes"] = [
            {
                "description": {"text": finding.fix.description},
                "artifactChanges": [{"artifactLocation": artifact, "replacements": changes}],
            }
        ]
    return result


def _fingerprint(finding: Finding, repeated: Counter[str]) -> str:
    """Identity of a finding that stays if other lines of the file change."""
    identity = f"{finding.id}\0{_uri(finding.path)}\0{finding.text.strip()}"
    repeated[identity] += 1
    return sha256(f"{identity}\0{repeated[identity]}".encode()).hexdigest()[:32]


def _replacements(diff: str) -> list[dict[str, Any]]:
    """The hunks of a unified diff as replacements of full lines."""
    replacements: list[dict[str, Any]] = []
    for hunk in _HUNK.split(diff)[1:]:
        head, _, body = hunk.partition("\n")
        match = _RANGE.match(head)
        lines = body.splitlines(keepends=True)
        if match is None or any(line.startswith("\\") for line in lines):
            return []
        first, count = int(match[1]), int(match[2] or 1)
        text = "".join(line[1:] for line in lines if line[:1] in (" ", "+"))
        region = {"startLine": first, "startColumn": 1, "endLine": first + count, "endColumn": 1}
        replacements.append({"deletedRegion": region, "insertedContent": {"text": text}})
    return replacements


def _uri(path: str) -> str:
    """The path relative to the working folder, if it is in it."""
    file, _, cell = path.partition("#")
    place = Path(file)
    if place.is_absolute() and place.is_relative_to(Path.cwd()):
        file = place.relative_to(Path.cwd()).as_posix()
    return quote(file.replace("\\", "/"), safe="/:") + (f"#{cell}" if cell else "")


def _location(path: str, line: int, finding: Finding | None = None) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": line}
    if finding is not None:
        region |= {"startColumn": finding.column, "snippet": {"text": finding.text}}
        if finding.end_line >= line:
            region |= {"endLine": finding.end_line, "endColumn": finding.end_column}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}, "region": region}}
