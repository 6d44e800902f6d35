"""Apply the fixes of a check: show the changes of each file, write copies, or change files with backups."""

from __future__ import annotations

import tokenize
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.findings.catalog import catalog
from smp_advisor.reading.edits import changed, complete, diff_of_states
from smp_advisor.reading.source import read, with_text
from smp_advisor.scripts.following import follow
from smp_advisor.scripts.judging import judge
from smp_advisor.scripts.settings import from_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.reading.edits import Edit
    from smp_advisor.reading.module import Module
    from smp_advisor.reading.source import Source
    from smp_advisor.scripts.context import Context

__all__ = ["FileFix", "Written", "apply_fixes", "plan_fixes", "write_fixed"]

_MOST_ROUNDS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFix:
    """One file with its fixes applied."""

    path: Path
    text: str
    """New text of the file; of a notebook, its JSON."""
    diff: str
    """Unified diff from the current file."""
    ids: tuple[str, ...]
    """Ids of the applied fixes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A file that was written."""

    path: Path
    backup: Path | None = None
    """Backup of the previous file."""

    def __str__(self) -> str:
        backup = f"; the previous file is {self.backup.name}" if self.backup is not None else ""
        return f"Wrote {self.path}{backup}."


def plan_fixes(
    path: str | Path,
    *,
    ids: Iterable[str] | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    library: str | None = None,
) -> list[FileFix]:
    """Every safe fix by file: the script first, then imported modules next to it. Nothing is written.

    Parameters are those of `apply_fixes`.
    """
    selected = None if ids is None else {identifier.upper() for identifier in ids}
    settings = from_plan(plan, library)
    script = Path(path)
    texts: dict[Path, Source] = {}
    entry, fixes = read(script), dict[Path, set[str]]()
    before: dict[Path, Source] = {script: entry}
    states = {entry.text}
    for _ in range(_MOST_ROUNDS):
        context = follow(entry, settings, texts)
        changes = _round(context, selected)
        together = "\0".join(sorted(f"{module.source.path}\0{text}" for module, text, _ in changes))
        if not changes or together in states:
            break
        states.add(together)
        for module, text, fixed in changes:
            source = with_text(module.source, text)
            file = script if module.entry else module.source.file
            if file is None:
                continue
            before.setdefault(file, module.source)
            fixes.setdefault(file, set()).update(fixed)
            if module.entry:
                entry = source
            else:
                texts[file] = source
    return [
        FileFix(
            path=file,
            text=after.raw or after.text,
            diff=diff_of_states(before[file], after),
            ids=tuple(sorted(fixes[file])),
        )
        for file, after in ((script, entry), *sorted(texts.items()))
        if file in fixes
    ]


def apply_fixes(
    path: str | Path,
    *,
    in_place: bool = False,
    ids: Iterable[str] | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    library: str | None = None,
) -> Path:
    """Apply every safe fix in the script and in modules next to it, and return the path of the changed script.

    Parameters
    ----------
    path
        The script, or a notebook, whose cells are changed.
    in_place
        Change the files, after a backup of each to ``train.py.bak`` (``.bak1`` and so on if that exists). Otherwise
        ``train.fixed.py`` is written next to each file. Rename the copies of modules to use them.
    ids
        Only the fixes of these checks.
    plan, library
        As for `smp_advisor.check_script`.
    """
    script = Path(path)
    fixes = plan_fixes(script, ids=ids, plan=plan, library=library)
    written = {fix.path: write_fixed(fix.path, fix.text, in_place=in_place).path for fix in fixes}
    if script in written or in_place:
        return written.get(script, script)
    return write_fixed(script, read(script).raw or read(script).text, in_place=False).path


def write_fixed(path: Path, text: str, *, in_place: bool) -> Written:
    """Write the new text of a file to a copy next to it, or to the file after a backup."""
    raw = path.read_bytes()
    encoding = "utf-8" if path.suffix.lower() == ".ipynb" else tokenize.detect_encoding(BytesIO(raw).readline)[0]
    if not in_place:
        copy = path.with_name(f"{path.stem}.fixed{path.suffix}")
        copy.write_bytes(text.encode(encoding))
        return Written(path=copy)
    backup = _backup(path)
    backup.write_bytes(raw)
    path.write_bytes(text.encode(encoding))
    return Written(path=path, backup=backup)


def _round(context: Context, selected: set[str] | None) -> list[tuple[Module, str, set[str]]]:
    """New texts of the files with as many compatible fixes as possible, and the ids of these fixes."""
    by_module: dict[int, list[tuple[str, list[Edit]]]] = {}
    modules = {id(module): module for module in context.trace.modules}
    for finding, hit in judge(context):
        changes = complete(hit.edits)
        if not changes or not catalog()[finding.id].fix or (selected is not None and finding.id not in selected):
            continue
        fixes = by_module.setdefault(id(hit.module), [])
        if all(_apart(change, edit) for change in changes for _, edits in fixes for edit in edits):
            fixes.append((finding.id, changes))
    results = []
    for identity, fixes in by_module.items():
        module = modules[identity]
        text = changed(module, [change for _, changes in fixes for change in changes])
        if text is not None:
            results.append((module, text, {identifier for identifier, _ in fixes}))
            continue
        # The fixes are not compatible: apply the first one that works alone.
        alone = ((identifier, changed(module, changes)) for identifier, changes in fixes)
        results += [(module, result, {identifier}) for identifier, result in alone if result is not None][:1]
    return results


def _apart(first: Edit, second: Edit) -> bool:
    """Whether both edits can be applied together. The order of two insertions at one place is undefined."""
    return (
        first.end < second.start
        or second.end < first.start
        or (first.end == second.start and first.start != second.start)
    )


def _backup(script: Path) -> Path:
    number = 0
    while True:
        candidate = script.with_name(f"{script.name}.bak{number or ''}")
        if not candidate.exists():
            return candidate
        number += 1
