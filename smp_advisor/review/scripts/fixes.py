"""Apply the fixes of a check: show the changes of each file, write copies, or change files with backups."""

from __future__ import annotations

import errno
import os
import tokenize
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import TYPE_CHECKING

from smp_advisor.arguments.signatures import checked
from smp_advisor.core.files import NOTEBOOK, read_bytes
from smp_advisor.errors import AdvisorError
from smp_advisor.review.findings.catalog import catalog
from smp_advisor.review.reading.module import changed, complete, diff_of_states
from smp_advisor.review.reading.source import read, with_text
from smp_advisor.review.scripts.checks import judge
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.settings import from_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.source import Edit, Source
    from smp_advisor.review.scripts.context import Context


_MOST_ROUNDS = 20
_COPIES: dict[Path, bytes] = {}
"""Content of the copies that this process wrote, which it may replace."""


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
    hyperparameters: Mapping[str, Any] | None = None,
) -> list[FileFix]:
    """Every safe fix by file: the script first, then imported modules next to it. Nothing is written."""
    names: object = ids
    if names is not None and (isinstance(names, str) or not isinstance(names, Iterable)):
        raise AdvisorError(f"ids of fixes must be a list of their names, such as ['SMP001'], not {names!r:.80}.")
    selected = None if ids is None else {str(identifier).upper() for identifier in ids}
    if unknown := sorted((selected or set()) - set(catalog())):
        raise AdvisorError(f"There is no check {unknown[0]!r:.80}: the ids of fixes are those of findings, as SMP001.")
    settings = from_plan(plan, library, hyperparameters)
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


@checked
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
        ``train.fixed.py`` is written next to each file. Rename the copies of modules to use them. A file of that
        name with other content is not overwritten.
    ids
        Only the fixes of these checks.
    plan, library
        As for `smp_advisor.check_script`.

    Raises
    ------
    AdvisorError
        If a file cannot be read or written. It is unchanged then.

    Examples
    --------
    >>> from pathlib import Path
    >>> import smp_advisor as smpa
    >>> script = '''
    ... import smdistributed.modelparallel.torch as smp
    ...
    ... @smp.step
    ... def step(model, data):
    ...     loss = model(data).mean()
    ...     loss.backward()
    ...     return loss
    ... '''
    >>> _ = Path("train.py").write_text(script)
    >>> print(smpa.apply_fixes("train.py").read_text())
    import smdistributed.modelparallel.torch as smp
    ...
        model.backward(loss)
        return loss
    """
    script = Path(path)
    fixes = plan_fixes(script, ids=ids, plan=plan, library=library)
    written = {fix.path: write_fixed(fix.path, fix.text, in_place=in_place).path for fix in fixes}
    if script in written or in_place:
        return written.get(script, script)
    return write_fixed(script, read(script).raw or read(script).text, in_place=False).path


def write_fixed(path: Path, text: str, *, in_place: bool) -> Written:
    """Write the new text of a file to a copy next to it, or to the file after a backup."""
    target = path.resolve()  # a link stays a link
    try:
        raw, status = read_bytes(target, NOTEBOOK), target.stat()
        encoding = "utf-8" if path.suffix.lower() == ".ipynb" else tokenize.detect_encoding(BytesIO(raw).readline)[0]
        content = text.encode(encoding)
        if not in_place:
            return Written(path=_write_copy(path.with_name(f"{path.stem}.fixed{path.suffix}"), content, status))
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        backup = _write_backup(path, raw, status)
        try:
            _replace(target, content, status)
        except BaseException:
            backup.unlink()
            raise
    except OSError as error:
        raise AdvisorError(f"{path} cannot be written ({error.strerror or error}): it is unchanged.") from error
    return Written(path=path, backup=backup)


def _write_copy(copy: Path, content: bytes, status: os.stat_result) -> Path:
    try:
        _create(copy, content, status)
    except FileExistsError:
        present = read_bytes(copy, NOTEBOOK) if copy.is_file() and not copy.is_symlink() else None
        if present is None or present not in (content, _COPIES.get(copy.absolute())):
            raise AdvisorError(f"{copy} exists and is not overwritten: rename or delete it first.") from None
        if present != content:
            _replace(copy, content, status)
    _COPIES[copy.absolute()] = content
    return copy


def _write_backup(path: Path, content: bytes, status: os.stat_result) -> Path:
    number = 0
    while True:
        backup = path.with_name(f"{path.name}.bak{number or ''}")
        with suppress(FileExistsError):
            _create(backup, content, status)
            return backup
        number += 1


def _create(path: Path, content: bytes, status: os.stat_result) -> None:
    """Write a new file completely or not at all, with the permissions and, if allowed, the owner of `status`."""
    file = path.open("xb")
    try:
        with file:
            with suppress(AttributeError, OSError):
                os.chown(path, status.st_uid, status.st_gid)
            path.chmod(S_IMODE(status.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise


def _replace(path: Path, content: bytes, status: os.stat_result) -> None:
    """Replace a file in one step by a new file in the same folder."""
    temporary = path.with_name(f".smp_advisor_{token_hex(8)}")
    _create(temporary, content, status)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


def _round(context: Context, selected: set[str] | None) -> list[tuple[Module, str, set[str]]]:
    """New texts of the files with as many compatible fixes as possible, and the ids of these fixes."""
    by_module: dict[int, list[tuple[str, list[Edit]]]] = {}
    modules = {id(module): module for module in context.trace.modules}
    for finding, hit in judge(context):
        changes = complete(hit.edits)
        if not changes or not catalog()[finding.id].fix or (selected is not None and finding.id not in selected):
            continue
        fixes = by_module.setdefault(id(hit.module), [])
        # The order of two insertions at one place is undefined.
        if all(
            change.end < edit.start or edit.end < change.start or change.end == edit.start != change.start
            for change in changes
            for _, edits in fixes
            for edit in edits
        ):
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
