"""Check the files of a project: scripts first, and the modules that they import with them and not alone."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.findings.report import Report
from smp_advisor.reading.imports import local_files
from smp_advisor.reading.source import Unresolved, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from smp_advisor.findings.finding import Finding
    from smp_advisor.scripts.command.outcome import Outcome

__all__ = ["Project", "check_files"]

_RANK = {"error": 0, "warning": 1, "info": 2}
_MAIN = re.compile(r"^if\s+__name__\s*==\s*[\"']__main__", re.MULTILINE)
_MOST_NAMES = 6
"""Functions in one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """Reports of the files of one run of the command."""

    reports: tuple[Report, ...] = ()
    """Of the scripts, in the order of the files. A finding is in one of them only."""
    repeated: tuple[int, ...] = ()
    """Findings of each script that another report has."""
    modules: tuple[Report, ...] = ()
    """Of files that were judged as modules of these scripts: what no script reaches."""
    problems: tuple[str, ...] = ()
    """A sentence for each file that could not be checked."""


def check_files(files: Iterable[Path], check: Callable[[Path], Outcome]) -> Project:
    """Check each file once: a module that a script imports is judged where that script calls it.

    A module with a ``__main__`` block is a script as well.
    """
    paths = list(files)
    position = {path: number for number, path in enumerate(paths)}
    outcomes: dict[Path, Outcome] = {}
    problems: dict[Path, str] = {}
    read_with: dict[Path, list[Outcome]] = defaultdict(list)
    for path in _scripts_first(paths):
        if path.resolve() in read_with and not _is_script(path):
            continue
        try:
            outcome = check(path)
        except AdvisorError as error:
            problems[path] = str(error)
            continue
        outcomes[path] = outcome
        for module in outcome.modules:
            read_with[module].append(outcome)
    ordered = sorted(outcomes, key=position.__getitem__)
    reports, repeated = _without_repeats([outcomes[path].report for path in ordered])
    alone = [path for path in paths if path not in outcomes and path not in problems]
    return Project(
        reports=reports,
        repeated=repeated,
        modules=tuple(_module_report(path, read_with[path.resolve()]) for path in alone),
        problems=tuple(problems[path] for path in sorted(problems, key=position.__getitem__)),
    )


def _scripts_first(paths: list[Path]) -> list[Path]:
    """The files that no other file imports, then the others."""
    if len(paths) < 2:
        return paths
    imported: set[Path] = set()
    for path in paths:
        try:
            text = read(path).text
            imported |= {file.resolve() for file in local_files(text, path.resolve().parent)} - {path.resolve()}
        except AdvisorError:
            continue  # its check reports the reason
    return sorted(paths, key=lambda path: path.resolve() in imported)


def _is_script(path: Path) -> bool:
    """Whether a file has a ``__main__`` block."""
    try:
        return _MAIN.search(read(path).text) is not None
    except AdvisorError:
        return True


def _without_repeats(reports: list[Report]) -> tuple[tuple[Report, ...], tuple[int, ...]]:
    """The reports with each finding in one of them, where it is most severe."""
    owner: dict[tuple[str, str, int, int], tuple[int, Finding]] = {}
    for number, report in enumerate(reports):
        for finding in report.findings:
            place = (finding.id, finding.path, finding.line, finding.column)
            known = owner.get(place)
            if known is None or _RANK[finding.severity] < _RANK[known[1].severity]:
                owner[place] = (number, finding)
    own = {id(finding) for _, finding in owner.values()}
    trimmed = tuple(
        replace(report, findings=tuple(finding for finding in report.findings if id(finding) in own))
        for report in reports
    )
    return trimmed, tuple(len(report) - len(after) for report, after in zip(reports, trimmed, strict=True))


def _module_report(path: Path, users: list[Outcome]) -> Report:
    """A note on the functions of a module that none of its scripts reaches."""
    file = path.resolve()
    uncalled = set.intersection(*({entry for entry in user.uncalled if entry[0] == file} for user in users))
    if not uncalled:
        return Report((), (), str(path))
    several = sorted((line, name) for _, line, name in uncalled)
    names = ", ".join(name for _, name in several[:_MOST_NAMES])
    more = f" and {len(several) - _MOST_NAMES} more" if several[_MOST_NAMES:] else ""
    note = Unresolved(
        path=str(path), line=several[0][0], what=f"No checked script calls {names}{more}: not judged in this module."
    )
    return Report((), (note,), str(path))
