"""Parts of the command: the files that it checks, the checks that count, annotations for GitHub."""

from __future__ import annotations

import glob
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.findings.finding import Finding
    from smp_advisor.findings.report import Report

__all__ = ["as_annotations", "scripts_of", "selected"]

_MOST_FILES = 10_000
_SUFFIXES = (".py", ".ipynb")
_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def scripts_of(arguments: Iterable[str]) -> list[str]:
    """The files that the arguments name: files, folders with their scripts, patterns, and "-".

    Raises
    ------
    AdvisorError
        If a folder or pattern has no script, or if there are too many.
    """
    paths: dict[str, None] = {}
    for argument in arguments:
        matches = list(_matches(argument))
        if not matches:
            raise AdvisorError(f"{argument} has no .py file and no notebook.")
        paths |= dict.fromkeys(matches)
        if len(paths) > _MOST_FILES:
            raise AdvisorError(f"More than {_MOST_FILES:,} files: pass a smaller folder.")
    return list(paths)


def _matches(argument: str) -> Iterator[str]:
    path = Path(argument)
    if argument == "-" or path.is_file():
        yield argument
    elif path.is_dir():
        for file in sorted(path.rglob("*")):
            inside = file.relative_to(path).parts
            if file.suffix in _SUFFIXES and not any(part.startswith(".") for part in inside) and file.is_file():
                yield str(file)
    elif glob.has_magic(argument):
        yield from sorted(name for name in glob.iglob(argument, recursive=True) if Path(name).suffix in _SUFFIXES)  # noqa: PTH207 - of a pattern that may be absolute
    else:
        yield argument  # the check reports that it does not exist


def selected(report: Report, select: tuple[str, ...], ignore: tuple[str, ...]) -> Report:
    """The report with the findings whose ids begin with one of `select`, or any, and with none of `ignore`."""
    if not select and not ignore:
        return report
    findings = tuple(
        finding
        for finding in report.findings
        if (not select or finding.id.startswith(select)) and not (ignore and finding.id.startswith(ignore))
    )
    return replace(report, findings=findings)


def as_annotations(reports: Iterable[Report]) -> str:
    """Workflow commands that GitHub Actions shows next to the lines."""
    return "\n".join(_annotation(finding) for report in reports for finding in report.findings)


def _annotation(finding: Finding) -> str:
    places = {"file": finding.path, "line": finding.line, "col": finding.column, "title": finding.id}
    if finding.end_line >= finding.line:
        places |= {"endLine": finding.end_line, "endColumn": finding.end_column}
    fields = ",".join(f"{name}={_escaped(str(value), properties=True)}" for name, value in places.items())
    text = _escaped(f"{finding.message} {finding.consequence} Instead: {finding.remedy}", properties=False)
    return f"::{_LEVELS[finding.severity]} {fields}::{text}"


def _escaped(text: str, *, properties: bool) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if properties else text
