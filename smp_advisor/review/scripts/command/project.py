"""The files of a project and their outcomes: scripts first, and imported modules with them and not alone."""

from __future__ import annotations

import ast
import glob
import os
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.core.files import SCRIPT, is_path
from smp_advisor.core.words import listed
from smp_advisor.errors import AdvisorError
from smp_advisor.review.findings.report import Report
from smp_advisor.review.reading.outside import UNFOLLOWED, local_files
from smp_advisor.review.reading.source import Source, Unresolved, read
from smp_advisor.review.scripts.check import report_of
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.settings import from_plan

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smp_advisor.review.findings.finding import Finding
    from smp_advisor.review.scripts.settings import Settings


_SUFFIXES = (".py", ".pyw", ".ipynb")
_LEFT_OUT = frozenset(
    ["__pycache__", "__pypackages__", "build", "dist", "env", "node_modules", "site-packages", "venv"]
)
"""Folders without scripts of the project; those with a leading dot are left out, too."""
_MOST_FILES = 10_000


def files_of(paths: Sequence[str], exclude: Sequence[str]) -> list[Path]:
    """Scripts and notebooks of files, folders and patterns, each once, in the order of `paths`.

    A path of a file is taken whatever its name is. In folders, links to folders are not followed.
    """
    chosen: dict[Path, Path] = {}
    for text in paths:
        if not is_path(text):
            raise AdvisorError(f"smp-advisor check requires the path of a file, not {text!r:.80}.")
        path = Path(text)
        if os.path.isdir(path):  # noqa: PTH112 - pathlib's fails for long names
            files = _limited(_walk(path, exclude), text)
        elif glob.has_magic(text) and not os.path.exists(path):  # noqa: PTH110
            matches = (Path(match) for match in glob.iglob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
            files = _limited((match for match in matches if _is_script(match) and not _excluded(match, exclude)), text)
        else:
            files = [path]
        if not files:
            raise AdvisorError(f"{text} has no script to check: pass a folder or pattern with .py files or notebooks.")
        for file in files:
            target = Path(os.path.realpath(file))
            if os.path.islink(target):  # noqa: PTH114
                raise AdvisorError(f"{file} is a circle of links: pass the path of a file.")
            chosen.setdefault(target, file)
    return list(chosen.values())


def standard_input(name: str) -> Source:
    """The text on the standard input, as the file `name` if there is one; imports are followed from its folder."""
    raw = sys.stdin.buffer.read(SCRIPT + 1)
    if len(raw) > SCRIPT:
        raise AdvisorError(f"The standard input is larger than {SCRIPT / 1e6:.3g} MB, which no script is.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AdvisorError("The standard input is not text in UTF-8: pass the path of the script instead.") from None
    if name.lower().endswith(".ipynb"):
        raise AdvisorError("A notebook cannot be checked from the standard input: pass its path instead.")
    source = read(text if "\n" in text else f"{text}\n# {name}\n")
    return Source(name or "<stdin>", source.text, Path(name) if name else None)


def _limited(files: Iterator[Path], text: str) -> list[Path]:
    several = sorted(islice(files, _MOST_FILES + 1))
    if len(several) > _MOST_FILES:
        raise AdvisorError(f"{text} has more than {_MOST_FILES:,} scripts: pass the folder of one project.")
    return several


def _walk(folder: Path, exclude: Sequence[str]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _LEFT_OUT and not _excluded(here / name, exclude)
        )
        for name in sorted(names):
            path = here / name
            if _is_script(path) and not _excluded(path, exclude):
                yield path


def _is_script(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".") and path.is_file()


def _excluded(path: Path, exclude: Sequence[str]) -> bool:
    text = path.as_posix()
    return any(
        fnmatch(path.name, pattern) or fnmatch(text, pattern) or fnmatch(text, f"*/{pattern.rstrip('/')}")
        for pattern in exclude
    )


def checked(options: Namespace, report_of_job: Callable[[Path | str], Report | None]) -> Project:
    """Check the files of a command; `report_of_job` is None for a training script."""
    settings = from_plan(options.plan, options.library, options.hyperparameters)
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise AdvisorError("The working directory no longer exists: change to another one.") from None

    def shown(outcome: Outcome) -> Outcome:
        return replace(outcome, report=relative(options.selection.applied(outcome.report), folder))

    def check(path: Path) -> Outcome:
        if (report := report_of_job(path)) is not None:
            return Outcome(report=options.selection.applied(report))
        return shown(judged(read(path), settings))

    if options.paths == ["-"]:
        source = standard_input(options.stdin_filename)
        job = report_of_job(source.text)
        report = shown(judged(source, settings)).report if job is None else options.selection.applied(job)
        return Project(reports=(report,), repeated=(0,))
    project = check_files(files_of(options.paths, options.exclude), check)
    return replace(project, modules=tuple(map(partial(relative, folder=folder), project.modules)))


_TRAINS = re.compile(
    r"\b(?:DataLoader|backward|barrier|init_process_group|optim(?:izer)?|set_device|smp|tsm|xm)\b"
    r"|\btorch\.(?:distributed|save)\b|Sampler\b|\ball_(?:gather|reduce)|\bsave_|DistributedDataParallel|FSDP|\bfully_shard"
)
"""Text of functions that checks can apply to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One script after its check."""

    report: Report
    """All findings, also of checks that are not selected."""
    modules: tuple[Path, ...] = ()
    """Files that were read with the script, without it."""
    uncalled: frozenset[tuple[Path, int, str]] = frozenset()
    """Functions of these modules that train, and that the script does not reach: file, line and name."""


def judged(source: Source, settings: Settings) -> Outcome:
    """Follow and check one script."""
    context = follow(source, settings)
    followed = {id(function.module) for function in context.trace.functions if function.node in context.followed}
    # The files of a suite of commands, which is not followed, are scripts of their own.
    suite = any(UNFOLLOWED in note.what for note in context.unresolved)
    files = [module.source.file for module in context.trace.modules[1:] if id(module) in followed or not suite]
    uncalled = {
        (module.source.file.resolve(), function.node.lineno, function.name)
        for function in context.trace.functions
        for module in [function.module]
        if not module.entry and module.source.file is not None and function.node not in context.followed
        if not isinstance(function.node, ast.Lambda) and _TRAINS.search(module.text(function.node)) is not None
    }
    return Outcome(
        report=report_of(context),
        modules=tuple(file.resolve() for file in files if file is not None),
        uncalled=frozenset(uncalled),
    )


def relative(report: Report, folder: Path) -> Report:
    """Return the report with paths relative to a folder, of files in it."""

    def shown(path: str) -> str:
        file, mark, cell = path.partition("#cell-")
        if file.startswith("<"):
            return path
        place = Path(file).absolute()
        if not place.is_relative_to(folder):
            place = Path(file).resolve()
        return (place.relative_to(folder).as_posix() if place.is_relative_to(folder) else file) + mark + cell

    return replace(
        report,
        path=shown(report.path),
        findings=tuple(replace(finding, path=shown(finding.path)) for finding in report.findings),
        unresolved=tuple(replace(note, path=shown(note.path)) for note in report.unresolved),
    )


_RANK = {"error": 0, "warning": 1, "info": 2}
_MAIN = re.compile(r"^if\s+__name__\s*==\s*[\"']__main__", re.MULTILINE)


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
        try:
            if path.resolve() in read_with and _MAIN.search(read(path).text) is None:
                continue
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
    """Return the files that no other file imports, then the others."""
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


def _without_repeats(reports: list[Report]) -> tuple[tuple[Report, ...], tuple[int, ...]]:
    """Return the reports with each finding in one of them, where it is most severe."""
    owner: dict[tuple[str, str, int, int], tuple[int, Finding]] = {}
    for number, report in enumerate(reports):
        for finding in report.findings:
            place = (finding.id, finding.path, finding.line, finding.column)
            earlier = owner.get(place)
            if earlier is None or _RANK[finding.severity] < _RANK[earlier[1].severity]:
                owner[place] = (number, finding)
    own = {id(finding) for _, finding in owner.values()}
    trimmed = tuple(
        replace(report, findings=tuple(finding for finding in report.findings if id(finding) in own))
        for report in reports
    )
    return trimmed, tuple(len(report) - len(after) for report, after in zip(reports, trimmed, strict=True))


def _module_report(path: Path, users: list[Outcome]) -> Report:
    """Return a note on the functions of a module that none of its scripts reaches."""
    file = path.resolve()
    uncalled = set.intersection(*({entry for entry in user.uncalled if entry[0] == file} for user in users))
    if not uncalled:
        return Report((), (), str(path))
    several = sorted((line, name) for _, line, name in uncalled)
    names = listed([name for _, name in several])
    what = f"No checked script calls {names}: not judged in this module."
    note = Unresolved(path=str(path), line=several[0][0], what=what)
    return Report((), (note,), str(path))
