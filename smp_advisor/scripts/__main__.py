"""``smp-advisor-check src/``: the script checker for the command line, CI and pre-commit."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.module import shared_trees
from smp_advisor.reading.source import read
from smp_advisor.scripts.command.cache import Cache, cache_folder
from smp_advisor.scripts.command.inputs import files_of, standard_input
from smp_advisor.scripts.command.options import parse
from smp_advisor.scripts.command.outcome import Outcome, judged, relative
from smp_advisor.scripts.command.output import rendered, write_output
from smp_advisor.scripts.command.project import Project, check_files
from smp_advisor.scripts.fixes import plan_fixes, write_fixed
from smp_advisor.scripts.settings import from_plan

if TYPE_CHECKING:
    from smp_advisor.scripts.command.options import Options
    from smp_advisor.scripts.fixes import FileFix

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Check the scripts. Exit status: 0 without errors, 1 with errors, 2 if a script cannot be checked."""
    try:
        options = parse(arguments)
        with shared_trees():
            if options.diff:
                return _diff(options)
            project = _checked(options)
        text = rendered(project, options.format, single=len(options.paths) == 1 and not Path(options.paths[0]).is_dir())
        if options.output is not None:
            write_output(options.output, text)
        else:
            _print(text)
    except AdvisorError as error:
        _complain(error)
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

    cache = Cache(cache_folder(), settings) if options.cache and not options.fix else None

    def check(path: Path) -> Outcome:
        if options.fix:
            _fix(path, options)
        outcome = cache.read(path) if cache is not None else None
        if outcome is None:
            outcome = judged(read(path), settings)
            if cache is not None:
                cache.write(path, outcome)
        return shown(outcome)

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


def _fix(path: Path, options: Options) -> None:
    for fix in _fixes(path, options):
        _complain(write_fixed(fix.path, fix.text, in_place=True))


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
    print(text)  # noqa: T201 - a command line program


def _complain(text: object) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - a command line program


if __name__ == "__main__":
    sys.exit(main())
