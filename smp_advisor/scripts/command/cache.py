"""Results of earlier runs of the command, in the cache folder of the user: JSON files, one for each script.

A result is used if the package, the settings, and all files that the check read or looked for are the same. Damaged
content, and content of another origin, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import smp_advisor
from smp_advisor._version import __version__
from smp_advisor.files import NOTEBOOK, has_too_many_values, read_bytes
from smp_advisor.findings.catalog import catalog
from smp_advisor.findings.coverage import Coverage, Part
from smp_advisor.findings.finding import Finding, Fix, Replacement, Unresolved
from smp_advisor.findings.report import Report
from smp_advisor.scripts.command.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.scripts.settings import Settings

__all__ = ["Cache", "cache_folder"]

_MOST_BYTES = 2_000_000
_MOST_RESULTS = 2_000
"""Scripts in the folder; the older half is deleted above."""
_ROOMS = ("findings", "libraries", "reading", "scripts")
"""Rooms whose files decide a result."""


def cache_folder() -> Path:
    """``SMP_ADVISOR_CACHE_DIR``, or the folder of the platform for caches of a user."""
    if chosen := os.environ.get("SMP_ADVISOR_CACHE_DIR"):
        return Path(chosen) / "checks"
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "smp_advisor" / "checks"


class Cache:
    """Results for one set of settings."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._settings = json.dumps(asdict(settings), sort_keys=True, default=repr)
        self._digests: dict[Path, str] = {}

    def read(self, path: Path) -> Outcome | None:
        """The result of a script; None if there is none that holds."""
        try:
            text = read_bytes(self._file(path), _MOST_BYTES).decode("utf-8")
            if has_too_many_values(text):
                return None
            data = json.loads(text)
            return _outcome(data["outcome"]) if self._holds(path, data) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def write(self, path: Path, outcome: Outcome) -> None:
        """Keep the result of a script. A folder that cannot be written is no error."""
        if not outcome.files:
            return
        data = {
            "files": {str(file): self._digest(file) for file in outcome.files},
            "absent": sorted(map(str, outcome.absent)),
            "siblings": self._siblings(path),
            "outcome": _plain(outcome),
        }
        text = json.dumps(data)
        if len(text) > _MOST_BYTES:
            return
        file = self._file(path)
        temporary = file.with_name(f"{token_hex(8)}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_text(text, "utf-8")
            temporary.replace(file)
            self._prune()
        except OSError:
            return

    def _file(self, path: Path) -> Path:
        key = "\0".join((_package(), self._settings, str(path), os.path.realpath(path)))
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"

    def _holds(self, path: Path, data: dict[str, Any]) -> bool:
        """Whether all files that decided the result are the same."""
        files = {Path(file): digest for file, digest in data["files"].items()}
        return (
            path.resolve() in files
            and all(self._digest(file) == digest for file, digest in files.items())
            and not any(Path(file).is_file() for file in data["absent"])
            and data["siblings"] == self._siblings(path)
        )

    def _digest(self, file: Path) -> str:
        if file not in self._digests:
            try:
                self._digests[file] = hashlib.sha256(read_bytes(file, NOTEBOOK)).hexdigest()
            except OSError:
                self._digests[file] = ""
        return self._digests[file]

    def _siblings(self, path: Path) -> str:
        """Digest of the Python files of the folder: a script is a module if one of them imports it."""
        files = sorted(path.resolve().parent.glob("*.py"))
        text = "\0".join(f"{file.name}\0{self._digest(file)}" for file in files[:200])
        return hashlib.sha256(f"{len(files)}\0{text}".encode()).hexdigest()

    def _prune(self) -> None:
        results = list(self._folder.glob("*.json"))
        if len(results) > _MOST_RESULTS:
            for file in sorted(results, key=lambda result: result.stat().st_mtime)[: len(results) // 2]:
                file.unlink(missing_ok=True)


@cache
def _package() -> str:
    """The version of the package and the state of its files, which change between versions while it is developed."""
    top = Path(smp_advisor.__file__).parent
    states = [
        f"{file.relative_to(top)} {status.st_size} {status.st_mtime_ns}"
        for room in _ROOMS
        for file in sorted((top / room).rglob("*"))
        if file.suffix in (".py", ".toml")
        for status in [file.stat()]
    ]
    return "\0".join([__version__, sys.version, *states])


def _plain(outcome: Outcome) -> dict[str, Any]:
    report = outcome.report
    return {
        "path": report.path,
        "findings": [asdict(finding) | _fix_without_text(finding.fix) for finding in report.findings],
        "unresolved": [asdict(note) for note in report.unresolved],
        "coverage": report.coverage.plain() if report.coverage is not None else None,
        "modules": list(map(str, outcome.modules)),
        "uncalled": [[str(file), line, name] for file, line, name in sorted(outcome.uncalled)],
    }


def _fix_without_text(fix: Fix | None) -> dict[str, Any]:
    return {"fix": asdict(fix) | {"source": ""} if fix is not None else None}


def _outcome(data: dict[str, Any]) -> Outcome:
    """The result in `data`. Raises KeyError, TypeError or ValueError if that is something else."""
    coverage = data["coverage"]
    report = Report(
        tuple(_finding(finding) for finding in data["findings"]),
        tuple(Unresolved(**_typed(Unresolved, note)) for note in data["unresolved"]),
        _text(data["path"]),
        coverage=_coverage(coverage) if coverage is not None else None,
    )
    uncalled = frozenset((Path(_text(file)), int(line), _text(name)) for file, line, name in data["uncalled"])
    return Outcome(report=report, modules=tuple(Path(_text(file)) for file in data["modules"]), uncalled=uncalled)


def _finding(data: dict[str, Any]) -> Finding:
    fix = data.pop("fix")
    if fix is not None:
        replacements = tuple(Replacement(**_typed(Replacement, change)) for change in fix.pop("replacements"))
        fix = Fix(**_typed(Fix, fix), replacements=replacements)
    finding = Finding(**_typed(Finding, data), fix=fix)
    if finding.id not in catalog() or finding.severity not in ("error", "warning", "info"):
        raise ValueError(finding.id)
    return finding


def _coverage(data: dict[str, Any]) -> Coverage:
    return Coverage(
        libraries=_texts(data["libraries"]),
        parts=tuple(Part(role=_text(part["role"]), places=_texts(part["places"])) for part in data["parts"]),
        assumed=_texts(data["assumed"]),
    )


def _typed(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    """`data`, if its values have the types of the text and number fields of a dataclass."""
    types = {field.name: str(field.type) for field in fields(kind)}
    for name, value in data.items():
        expected = int if types[name].startswith("int") else str
        if not (isinstance(value, expected) or (value is None and "None" in types[name])):
            raise TypeError(name)
    return data


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return value


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(map(_text, values))
