"""Make the fixes of a check: show what would change in each file, write copies, or change in place with backups."""

from __future__ import annotations

import tokenize
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.findings.catalog import catalog
from smp_advisor.reading.edits import changed, complete, whole_diff
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
    """What the fixes make of one file."""

    path: Path
    text: str
    """The file's new text; of a notebook, its JSON."""
    diff: str
    """Unified diff from the file as it is."""
    ids: tuple[str, ...]
    """The checks whose fixes are in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A file that was written."""

    path: Path
    backup: Path | None = None
    """Where the file was kept as it had been."""

    def __str__(self) -> str:
        kept = f"; the file as it was is {self.backup.name}" if self.backup is not None else ""
        return f"Wrote {self.path}{kept}."


def plan_fixes(
    path: str | Path,
    *,
    ids: Iterable[str] | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    library: str | None = None,
) -> list[FileFix]:
    """Every fix that is safe, by file: the script first, then modules beside it that it imports. Nothing is written.

    Parameters are those of `apply_fixes`.
    """
    wanted = None if ids is None else {identifier.upper() for identifier in ids}
    settings = from_plan(plan, library)
    script = Path(path)
    texts: dict[Path, Source] = {}
    entry, made = read(script), dict[Path, set[str]]()
    before: dict[Path, Source] = {script: entry}
    seen = {entry.text}
    for _ in range(_MOST_ROUNDS):
        context = follow(entry, settings, texts)
        found = _round(context, wanted)
        together = "\0".join(sorted(f"{module.source.path}\0{text}" for module, text, _ in found))
        if not found or together in seen:
            break
        seen.add(together)
        for module, text, fixed in found:
            source = with_text(module.source, text)
            file = script if module.entry else module.source.file
            if file is None:
                continue
            before.setdefault(file, module.source)
            made.setdefault(file, set()).update(fixed)
            if module.entry:
                entry = source
            else:
                texts[file] = source
    return [
        FileFix(
            path=file,
            text=after.raw or after.text,
            diff=whole_diff(before[file], after),
            ids=tuple(sorted(made[file])),
        )
        for file, after in ((script, entry), *sorted(texts.items()))
        if file in made
    ]


def apply_fixes(
    path: str | Path,
    *,
    in_place: bool = False,
    ids: Iterable[str] | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    library: str | None = None,
) -> Path:
    """Apply every fix that is safe, in the script and in modules beside it; the path of the changed script.

    Parameters
    ----------
    path
        The script, or a notebook, whose cells are changed.
    in_place
        Change the files themselves, after copying each to ``train.py.bak`` (``.bak1`` and so on where that exists);
        otherwise ``train.fixed.py`` is written beside each, and nothing imports the modules' copies until they are
        renamed.
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
    """Write a file's new text: beside it, or in its place after a backup."""
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


def _round(context: Context, wanted: set[str] | None) -> list[tuple[Module, str, set[str]]]:
    """New texts of the files, with as many fixes as do not get in each other's way, and the checks they are of."""
    by_module: dict[int, list[tuple[str, list[Edit]]]] = {}
    modules = {id(module): module for module in context.trace.modules}
    for finding, hit in judge(context):
        changes = complete(hit.edits)
        if not changes or not catalog()[finding.id].fix or (wanted is not None and finding.id not in wanted):
            continue
        made = by_module.setdefault(id(hit.module), [])
        if all(_apart(change, other) for change in changes for _, others in made for other in others):
            made.append((finding.id, changes))
    found = []
    for identity, made in by_module.items():
        module = modules[identity]
        text = changed(module, [change for _, changes in made for change in changes])
        if text is not None:
            found.append((module, text, {identifier for identifier, _ in made}))
            continue
        # One of them does not go with the rest: the first that does alone, then.
        alone = ((identifier, changed(module, changes)) for identifier, changes in made)
        found += [(module, result, {identifier}) for identifier, result in alone if result is not None][:1]
    return found


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
