"""`smp-advisor-check src/`: the script checker for the command line, CI and pre-commit."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import write_text
from smp_advisor.core.words import one_line, plain
from smp_advisor.errors import AdvisorError
from smp_advisor.review.findings.code_hosts import as_annotations, as_sarif
from smp_advisor.review.findings.report import Report, as_text, counts, statement
from smp_advisor.review.reading.module import shared_trees
from smp_advisor.review.reading.source import read
from smp_advisor.review.scripts.command.options import parse
from smp_advisor.review.scripts.command.project import (
    Outcome,
    Project,
    check_files,
    files_of,
    judged,
    relative,
    standard_input,
)
from smp_advisor.review.scripts.fixes import plan_fixes, write_fixed
from smp_advisor.review.scripts.settings import from_plan

if TYPE_CHECKING:
    from smp_advisor.review.scripts.command.options import Options
    from smp_advisor.review.scripts.fixes import FileFix


_MOST_NAMES = 8
"""Files in one line of the text."""
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
        return "\n\n".join(map(as_text, project.reports))
    parts = [as_text(report) for report in project.reports if report.findings]
    for report, repeats in zip(project.reports, project.repeated, strict=True):
        if not report.findings and (repeats or _concerns(report)):
            parts.append(_short(report, repeats))
    idle = [report.path for report in project.reports if not report.findings and not _concerns(report)]
    if idle:
        parts.append(
            f"{_count(len(idle))} without a library, model, optimizer, training loop or saver that a check applies to: "
            f"{_listed(idle)}."
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
        parts.append("\n".join([f"Judged with the scripts that import them: {_listed(names)}.", *notes]))
    totals = Report(tuple(finding for report in project.reports for finding in report.findings), (), "").totals
    failed = f"; {_count(len(project.problems))} could not be checked" if project.problems else ""
    checked = _count(len(project.reports) + len(project.modules))
    return "\n\n".join([*parts, f"{checked} checked: {totals or 'no findings'}{failed}."])


def _concerns(report: Report) -> bool:
    """Whether the script has anything that checks apply to."""
    coverage = report.coverage
    return coverage is None or bool(coverage.libraries) or any(part.places for part in coverage.parts)


def _short(report: Report, repeats: int) -> str:
    """A script without findings of its own, in a few lines."""
    if repeats:
        return f"{one_line(report.path)}: no findings other than the {repeats} above in modules that it shares."
    lines = [line for line in statement(report) if not line.startswith("Not followed")]
    places = len(report.unresolved)
    if places:
        lines.append(f"Not followed: {places} place{'s' if places > 1 else ''}. Check this file alone to list them.")
    return "\n".join([counts(report), *(f"  {one_line(line)}" for line in lines)])


def _count(count: int) -> str:
    return f"{count:,} file{'s' if count != 1 else ''}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if names[_MOST_NAMES:] else ""
    return ", ".join(map(one_line, names[:_MOST_NAMES])) + more


def main(arguments: list[str] | None = None) -> int:
    """Check the scripts. Exit status: 0 without errors, 1 with errors, 2 if a script cannot be checked."""
    try:
        try:
            Path.cwd()
        except FileNotFoundError:
            raise AdvisorError("The working directory no longer exists: change to another one.") from None
        options = parse(arguments)
        with shared_trees():
            if options.diff:
                return _diff(options)
            project = _checked(options)
        text = rendered(project, options.format, single=len(options.paths) == 1 and not Path(options.paths[0]).is_dir())
        if options.output is not None:
            write_text(options.output, text if text.endswith("\n") else f"{text}\n")
        else:
            _print(text)
    except AdvisorError as error:
        _complain(error)
        return 2
    except OSError as error:
        _complain(f"{options.output} cannot be written ({error.strerror or error}): it is unchanged.")
        return 2
    if options.format in ("text", "json") or options.output is not None:
        for problem in project.problems:
            _complain(problem)
    wrong = any(report.of("error") or (options.strict and report.of("warning")) for report in project.reports)
    return 2 if project.problems else int(wrong)


def _checked(options: Options) -> Project:
    settings = from_plan(options.plan, options.library, options.hyperparameters)
    folder = Path.cwd()

    def shown(outcome: Outcome) -> Outcome:
        return replace(outcome, report=relative(options.selection.applied(outcome.report), folder))

    if options.paths == ("-",):
        return Project(reports=(shown(judged(standard_input(options.stdin_name), settings)).report,), repeated=(0,))

    def check(path: Path) -> Outcome:
        for fix in _fixes(path, options) if options.fix else ():
            _complain(write_fixed(fix.path, fix.text, in_place=True))
        return shown(judged(read(path), settings))

    project = check_files(files_of(options.paths, options.exclude), check)
    return replace(project, modules=tuple(map(partial(relative, folder=folder), project.modules)))


def _fixes(path: Path, options: Options) -> list[FileFix]:
    return plan_fixes(
        path,
        ids=options.selection.ids,
        plan=options.plan,
        library=options.library,
        hyperparameters=options.hyperparameters,
    )


def _diff(options: Options) -> int:
    """Print the changes of all fixes. Exit status: 1 if there are any."""
    status, shown = 0, dict[Path, None]()
    for path in files_of(options.paths, options.exclude):
        try:
            fixes = _fixes(path, options)
        except AdvisorError as error:
            _complain(error)
            status = 2
            continue
        for fix in fixes:
            if fix.path.resolve() not in shown:
                shown[fix.path.resolve()] = None
                _print(fix.diff)
    return status or int(bool(shown))


def _print(text: str) -> None:
    print(plain(text))  # noqa: T201 - a command line program


def _complain(text: object) -> None:
    print(plain(str(text)), file=sys.stderr)  # noqa: T201 - a command line program


if __name__ == "__main__":
    sys.exit(main())
