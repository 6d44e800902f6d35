"""Reports of a project in the formats of the command: text, JSON, SARIF and annotations of a workflow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smp_advisor.core.words import listed, one_line
from smp_advisor.review.findings.code_hosts import as_annotations, as_sarif
from smp_advisor.review.findings.report import Report, counts, statement

if TYPE_CHECKING:
    from smp_advisor.review.scripts.command.project import Project

_MOST_NOTES = 10
"""Modules with functions that no script calls, in the text."""


def rendered(project: Project, form: str, *, single: bool) -> str:
    """The reports in one format. `single` is whether one file was requested: its JSON is an object, not a list."""
    if form == "text":
        return _text(project, single=single)
    if form == "github":
        return as_annotations(project.reports, project.problems)
    if form == "sarif":
        log = as_sarif(*project.reports, *project.modules, problems=project.problems)
        return json.dumps(log, indent=2, ensure_ascii=False)
    documents: list[dict[str, Any]] = [json.loads(report.to_json()) for report in (*project.reports, *project.modules)]
    return json.dumps(documents[0] if single and len(documents) == 1 else documents, indent=2, ensure_ascii=False)


def _text(project: Project, *, single: bool) -> str:
    if single and not project.modules:
        return "\n\n".join(map(str, project.reports))
    parts = [str(report) for report in project.reports if report.findings]
    for report, repeats in zip(project.reports, project.repeated, strict=True):
        if not report.findings and (repeats or _concerns(report)):
            parts.append(_short(report, repeats))
    idle = [report.path for report in project.reports if not report.findings and not _concerns(report)]
    if idle:
        parts.append(
            f"{_count(len(idle))} without a library, model, optimizer, training loop or saver that a check applies to: "
            f"{listed(idle)}."
        )
    if project.modules:
        names = [report.path for report in project.modules]
        notes = [
            f"  {one_line(note.path)}:{note.line}: {one_line(note.what)}"
            for report in project.modules
            for note in report.unresolved
        ]
        if notes[_MOST_NOTES:]:
            notes[_MOST_NOTES:] = [
                f"  {len(notes) - _MOST_NOTES:,} more modules with such functions: see --format json."
            ]
        parts.append("\n".join([f"Judged with the scripts that import them: {listed(names)}.", *notes]))
    totals = Report(tuple(finding for report in project.reports for finding in report.findings), (), "").totals
    failed = f"; {_count(len(project.problems))} could not be checked" if project.problems else ""
    checked = _count(len(project.reports) + len(project.modules))
    return "\n\n".join([*parts, f"{checked} checked: {totals or 'no findings'}{failed}."])


def _concerns(report: Report) -> bool:
    """Return whether the script has anything that checks apply to."""
    coverage = report.coverage
    return coverage is None or bool(coverage.libraries) or any(part.places for part in coverage.parts)


def _short(report: Report, repeats: int) -> str:
    """Return a script without findings of its own, in a few lines."""
    if repeats:
        return f"{one_line(report.path)}: no findings other than the {repeats} above in modules that it shares."
    lines = [line for line in statement(report) if not line.startswith("Not followed")]
    places = len(report.unresolved)
    if places:
        lines.append(f"Not followed: {places} place{'s' if places > 1 else ''}. Check this file alone to list them.")
    return "\n".join([counts(report), *(f"  {one_line(line)}" for line in lines)])


def _count(count: int) -> str:
    return f"{count:,} file{'s' if count != 1 else ''}"
