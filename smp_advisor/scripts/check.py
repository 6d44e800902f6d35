"""Check a training script against what its library's documentation says will go wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.findings.catalog import catalog
from smp_advisor.findings.finding import Fix
from smp_advisor.findings.report import Report
from smp_advisor.reading.edits import changed, complete, diff
from smp_advisor.reading.notebooks import cell_changes
from smp_advisor.reading.source import read
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
    from smp_advisor.scripts.context import Hit

__all__ = ["check_script", "check_source"]

_FIXED_CHARACTERS = 2_000_000
"""Text that is changed and parsed again to offer fixes: each is tried on the whole file, which adds up in a large one.
The rest come with the next check, as when fixes are applied."""


def check_script(
    path_or_source: str | Path,
    plan: Plan | Mapping[str, Any] | None = None,
    *,
    library: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> Report:
    r"""Find what will fail, hang, train wrongly or waste money on the cluster.

    The script is read, never run. A check speaks only of what it can see; what it could not follow is listed in the
    report's `unresolved`. ``# smp: ignore[SMP109] why`` silences a finding on its line.

    Parameters
    ----------
    path_or_source
        Path of a ``.py`` or ``.ipynb`` file, or the text itself. Modules beside a file are followed where it imports
        them.
    plan
        What the job will run with: a `Plan`, or a dictionary with some of the library's parameters. Without one, what
        the script passes to ``smp.init`` counts, and checks that depend on the rest stay silent.
    library
        ``smp-v1``, ``smp-v2``, ``training-compiler`` or ``fsdp`` (PyTorch's alone), where neither the script's imports
        nor the plan tell.
    hyperparameters
        What the job passes to the script's own options; without it, an error behind an option that is off by default
        is a warning that names the option.

    Raises
    ------
    AdvisorError
        Where there is nothing to check: no such file, not text, not Python 3.

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
    """Like `check_script`, for text that has been read; `variables` are names that it does not assign."""
    context = follow(source, from_plan(plan, library, hyperparameters), variables=variables)
    budget = _FIXED_CHARACTERS
    findings = []
    for found, hit in judge(context):
        description = catalog()[found.id].fix
        if not description:
            findings.append(found)
        elif budget <= 0:
            findings.append(replace(found, unfixed="apply the other fixes first, then check again"))
        else:
            changes = list(hit.edits)
            budget -= len(hit.module.source.text) if changes else 0
            fix = _fix(hit.module, description, changes)
            findings.append(replace(found, fix=fix, unfixed="" if fix else _why_not(hit, changes)))
    return Report(tuple(findings), tuple(context.unresolved), source.path)


def _fix(module: Module, description: str, changes: list[Edit | None]) -> Fix | None:
    """The fix that makes all of `changes`; None where one has no place, or the result would not parse."""
    edits = complete(changes)
    text = changed(module, edits) if edits else None
    return None if text is None else Fix(description=description, diff=diff(module.source, edits), source=text)


def _why_not(hit: Hit, changes: list[Edit | None]) -> str:
    """Why a finding has no automatic fix where it stands."""
    known = complete(changes)
    if not known:
        return "where the change belongs cannot be told from this place"
    if hit.module.source.cells and cell_changes(hit.module.source, known) is None:
        return "the line is one of IPython's own"
    return "the change would not leave valid Python here"
