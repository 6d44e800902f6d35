"""Result of one checked script: its report, and what was read for it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.scripts.check import report_of
from smp_advisor.scripts.following import follow

if TYPE_CHECKING:
    from smp_advisor.findings.report import Report
    from smp_advisor.reading.source import Source
    from smp_advisor.scripts.settings import Settings

_TRAINS = re.compile(
    r"\b(?:DataLoader|backward|barrier|init_process_group|optim(?:izer)?|set_device|smp|tsm|xm)\b"
    r"|\btorch\.(?:distributed|save)\b|Sampler\b|\ball_(?:gather|reduce)|\bsave_|DistributedDataParallel|FSDP|\bfully_shard"
)
"""Text of functions that checks can apply to."""

__all__ = ["Outcome", "judged", "relative"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One script after its check."""

    report: Report
    """All findings, also of checks that are not selected."""
    modules: tuple[Path, ...] = ()
    """Files that were read with the script, without it."""
    uncalled: frozenset[tuple[Path, int, str]] = frozenset()
    """Functions of these modules that train, and that the script does not reach: file, line and name."""
    files: frozenset[Path] = frozenset()
    """Files that the result depends on."""
    absent: frozenset[Path] = frozenset()
    """Files that imports looked for and that do not exist."""


def judged(source: Source, settings: Settings) -> Outcome:
    """Follow and check one script.

    Raises
    ------
    AdvisorError
        If it is not Python 3.
    """
    context = follow(source, settings)
    modules = [module for module in context.trace.modules[1:] if module.source.file is not None]
    uncalled = {
        (module.source.file.resolve(), function.node.lineno, function.name)
        for function in context.trace.functions
        for module in [function.module]
        if not module.entry and module.source.file is not None and function.node not in context.followed
        if not isinstance(function.node, ast.Lambda) and _TRAINS.search(module.text(function.node)) is not None
    }
    return Outcome(
        report=report_of(context),
        modules=tuple(module.source.file.resolve() for module in modules if module.source.file is not None),
        uncalled=frozenset(uncalled),
        files=frozenset({*([source.file.resolve()] if source.file is not None else []), *context.present}),
        absent=frozenset(context.absent),
    )


def relative(report: Report, folder: Path) -> Report:
    """The report with paths relative to a folder, of files in it."""

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
