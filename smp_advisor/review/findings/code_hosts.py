"""Reports of a check in the formats of code hosts: SARIF, and the annotations of a workflow."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from smp_advisor._version import __version__
from smp_advisor.review.findings.catalog import catalog, check_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.review.findings.finding import Finding
    from smp_advisor.review.findings.report import Report

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_ROOT = "%SRCROOT%"


def as_sarif(*reports: Report, problems: Iterable[str] = ()) -> dict[str, Any]:
    """Return one run with the rules and results of all reports; code hosts refuse several runs of one tool.

    Relative paths are relative to the root of the repository. `problems` are files that could not be checked.
    """
    findings = [finding for report in reports for finding in report.findings]
    used = sorted({finding.id for finding in findings})
    failures = [{"level": "error", "message": {"text": problem}} for problem in problems]
    notes = dict.fromkeys(note for report in reports for note in report.unresolved)
    notifications = [
        {"level": "note", "message": {"text": note.what}, "locations": [_location(note.path, {"startLine": note.line})]}
        for note in notes
    ]
    coverage = {report.path: asdict(report.coverage) for report in reports if report.coverage is not None}
    same = Counter[str]()
    results = []
    for finding in findings:
        # A hash of the check, the file and its line without spaces stays the same when the line moves.
        file = finding.path.partition("#")[0].replace("\\", "/")
        text = "\0".join((finding.id, file, "".join(finding.text.split())))
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        same[mark] += 1
        results.append(_result(finding, used.index(finding.id), f"{mark}:{same[mark]}"))
    rules = [_rule(identifier) for identifier in used]
    driver = {"name": "smp_advisor", "version": __version__, "semanticVersion": __version__, "rules": rules}
    invocation = {"executionSuccessful": not failures, "toolExecutionNotifications": [*failures, *notifications]}
    run = {
        "tool": {"driver": driver},
        **({"properties": {"coverage": coverage}} if coverage else {}),
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [invocation],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(identifier: str) -> dict[str, Any]:
    text = catalog()[identifier]
    title, url = text.source
    return {
        "id": identifier,
        "shortDescription": {"text": text.title},
        "fullDescription": {"text": text.consequence},
        "help": {"text": f"{text.remedy} {title}: {url}", "markdown": check_markdown(text)},
        "helpUri": url,
        "defaultConfiguration": {"level": _LEVELS[text.severity]},
    }


def _result(finding: Finding, rule: int, fingerprint: str) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": finding.column}
    if finding.end_line is not None and finding.end_column is not None:
        region |= {"endLine": finding.end_line, "endColumn": finding.end_column}
    region["snippet"] = {"text": finding.text}
    return {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message} {finding.consequence} Instead: {finding.remedy}"},
        "locations": [_location(finding.path, region)],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
    }


def _location(path: str, region: dict[str, Any]) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": _artifact(path), "region": region}}
    cell = path.partition("#cell-")[2]
    if cell:  # lines count in the cell
        location["logicalLocations"] = [{"fullyQualifiedName": f"cell {cell}", "kind": "module"}]
    return location


def _artifact(path: str) -> dict[str, str]:
    file, _, cell = path.partition("#")
    if Path(file).is_absolute() or file.startswith(".."):
        uri, base = Path(file).resolve().as_uri(), {}
    else:
        uri, base = quote(file.replace("\\", "/"), safe="/"), {"uriBaseId": _ROOT}
    return {"uri": uri + (f"#{cell}" if cell else ""), **base}


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
