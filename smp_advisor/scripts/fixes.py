"""Apply the fixes of a check to a file: a copy beside it, or in place with a backup."""

from __future__ import annotations

import tokenize
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.scripts.catalogue import catalogue
from smp_advisor.scripts.edits import applied, complete, parses
from smp_advisor.scripts.following import follow
from smp_advisor.scripts.judging import judge
from smp_advisor.scripts.settings import from_plan
from smp_advisor.scripts.source import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from smp_advisor.library.plan import Plan
    from smp_advisor.scripts.edits import Edit
    from smp_advisor.scripts.settings import Settings
    from smp_advisor.scripts.source import Source

__all__ = ["apply_fixes", "fixed_source"]

_MOST_ROUNDS = 20


def apply_fixes(
    path: str | Path,
    *,
    in_place: bool = False,
    ids: Iterable[str] | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    library: str | None = None,
) -> Path:
    """Apply every fix that is safe; the path of the changed file.

    Parameters
    ----------
    path
        The script. Modules that it imports, and notebooks, are left alone.
    in_place
        Change the file itself, after copying it to ``train.py.bak`` (``.bak1`` and so on where that exists);
        otherwise ``train.fixed.py`` is written beside it.
    ids
        Only the fixes of these checks.
    plan, library
        As for `smp_advisor.check_script`.
    """
    script = Path(path)
    if script.suffix.lower() == ".ipynb":
        raise AdvisorError(f"{script} is a notebook: its findings show what to change, cell by cell.")
    before, after = fixed_source(script, ids=ids, plan=plan, library=library)
    raw = script.read_bytes()
    encoding, _ = tokenize.detect_encoding(BytesIO(raw).readline)
    target = script if in_place else script.with_name(f"{script.stem}.fixed{script.suffix}")
    if in_place:
        if after == before:
            return script
        _backup(script).write_bytes(raw)
    target.write_bytes(after.encode(encoding))
    return target


def fixed_source(
    path: Path,
    *,
    ids: Iterable[str] | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    library: str | None = None,
) -> tuple[str, str]:
    """Text of the file before and after its fixes."""
    wanted = None if ids is None else {identifier.upper() for identifier in ids}
    settings = from_plan(plan, library)
    source = read(path)
    before = source.text
    seen = {before}
    for _ in range(_MOST_ROUNDS):
        text = _round(source, settings, wanted)
        if text in seen:
            break
        seen.add(text)
        source = replace(source, text=text)
    return before, source.text


def _round(source: Source, settings: Settings, wanted: set[str] | None) -> str:
    """The text with as many fixes as do not get in each other's way."""
    context = follow(source, settings)
    module = context.trace.modules[0]
    made: list[list[Edit]] = []
    text = source.text
    for finding, hit in judge(context):
        changes = complete(hit.edits) if hit.module is module else []
        if not changes or not catalogue()[finding.id].fix or (wanted is not None and finding.id not in wanted):
            continue
        if all(_apart(change, other) for change in changes for others in made for other in others):
            made.append(changes)
    together = applied(text, [change for changes in made for change in changes])
    if parses(together):
        return together
    # One of them does not go with the rest: the first that does alone, then.
    alone = (applied(text, changes) for changes in made)
    return next((result for result in alone if parses(result)), text)


def _apart(one: Edit, other: Edit) -> bool:
    """Whether both can be made at once; two insertions at one place cannot, in an order that nobody chose."""
    return one.end < other.start or other.end < one.start or (one.end == other.start and one.start != other.start)


def _backup(script: Path) -> Path:
    number = 0
    while True:
        candidate = script.with_name(f"{script.name}.bak{number or ''}")
        if not candidate.exists():
            return candidate
        number += 1
