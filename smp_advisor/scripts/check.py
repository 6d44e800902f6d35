"""Check a training script against the documentation of its library."""

from __future__ import annotations

import bisect
from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.findings.catalog import catalog
from smp_advisor.findings.finding import Fix, Replacement
from smp_advisor.findings.report import Report
from smp_advisor.reading.edits import changed, complete, diff
from smp_advisor.reading.notebooks import cell_changes
from smp_advisor.reading.source import read
from smp_advisor.scripts.coverage import coverage
from smp_advisor.scripts.following import follow
from smp_advisor.scripts.judging import judge
from smp_advisor.scripts.settings import from_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.reading.edits import Edit
    from smp_advisor.reading.module import Module
    from smp_advisor.reading.source import Source
    from smp_advisor.scripts.context import Context, Hit

__all__ = ["check_script", "check_source", "report_of"]

_FIXED_CHARACTERS = 2_000_000
"""Limit of the text that is changed and parsed again for fixes, because each fix is tried on the full file.
The next check offers the remaining fixes."""


def check_script(
    path_or_source: str | Path,
    plan: Plan | Mapping[str, Any] | None = None,
    *,
    library: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> Report:
    r"""Find defects that make a job fail, hang, train incorrectly or waste money.

    The script is read, never run. A check reports only defects that it can see. Code that could not be followed is
    listed in `unresolved` of the report. ``# smp: ignore[SMP109] why`` suppresses a finding on its line.

    Parameters
    ----------
    path_or_source
        Path of a ``.py`` or ``.ipynb`` file, or the text itself. Modules next to a file are followed if it
        imports them.
    plan
        Settings of the job: a `Plan`, or a dictionary with some of the library's parameters. Without one, the arguments
        of ``smp.init`` apply, and checks that depend on other settings report nothing.
    library
        ``smp-v1``, ``smp-v2``, ``training-compiler`` or ``fsdp`` (PyTorch's alone), if neither the script's
        imports nor the plan determine the library.
    hyperparameters
        Options that the job passes to the script. Without them, an error behind an option that is off by default is a
        warning that names the option.

    Raises
    ------
    AdvisorError
        If there is nothing to check: the file does not exist, is not text, or is not Python 3.

    Examples
    --------
    >>> report = check_script("import smdistributed.modelparallel.torch as smp\nprint(smp.rank())\n")
    >>> [finding.id for finding in report]
    ['SMP101']
    """
    return check_source(read(path_or_source), plan, library=library, hyperparameters=hyperparameters)


def check_source(
    source: Source,
    plan: Plan | Mapping[str, Any] | None = None,
    *,
    library: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Report:
    """Like `check_script`, for a source. `variables` are names that it does not assign."""
    return report_of(follow(source, from_plan(plan, library, hyperparameters), variables=variables))


def report_of(context: Context) -> Report:
    """The findings of a script that was followed, with their fixes."""
    budget = _FIXED_CHARACTERS
    findings = []
    for finding, hit in judge(context):
        description = catalog()[finding.id].fix
        if not description:
            findings.append(finding)
        elif budget <= 0:
            findings.append(replace(finding, unfixed="apply the other fixes first, then check again"))
        else:
            changes = list(hit.edits)
            budget -= len(hit.module.source.text) if changes else 0
            fix = _fix(hit.module, description, changes)
            findings.append(replace(finding, fix=fix, unfixed="" if fix else _why_not(hit, changes)))
    return Report(
        tuple(findings), tuple(context.unresolved), context.trace.modules[0].source.path, coverage=coverage(context)
    )


def _fix(module: Module, description: str, changes: list[Edit | None]) -> Fix | None:
    """The fix with all `changes`; None if one has no place, or the result does not parse."""
    edits = complete(changes)
    text = changed(module, edits) if edits else None
    if text is None:
        return None
    replaced = () if module.source.cells else tuple(_replacement(module.source, edit) for edit in edits)
    return Fix(description=description, diff=diff(module.source, edits), source=text, replacements=replaced)


def _replacement(source: Source, edit: Edit) -> Replacement:
    starts = source.starts()
    first, last = (bisect.bisect_right(starts, place) for place in (edit.start, edit.end))
    return Replacement(
        line=first,
        column=edit.start - starts[first - 1] + 1,
        end_line=last,
        end_column=edit.end - starts[last - 1] + 1,
        text=edit.text,
    )


def _why_not(hit: Hit, changes: list[Edit | None]) -> str:
    """Reason why a finding has no automatic fix."""
    edits = complete(changes)
    if not edits:
        return hit.unfixed or "the place of the change is not known"
    if hit.module.source.cells and cell_changes(hit.module.source, edits) is None:
        return "the line is IPython syntax"
    return "the change would not result in valid Python"
