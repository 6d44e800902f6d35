"""Parts of the command: the files that it checks, the checks that count, annotations for GitHub."""

from __future__ import annotations

import glob
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.files import CONFIGURATION, read_bytes
from smp_advisor.findings.catalog import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.findings.finding import Finding
    from smp_advisor.findings.report import Report

__all__ = ["as_annotations", "project_settings", "scripts_of", "selected", "selected_ids"]

_MOST_FILES = 10_000
_SUFFIXES = (".py", ".ipynb")
_LISTS, _PATHS = ("select", "ignore"), ("plan", "hyperparameters")
_SETTINGS: dict[str, type] = {
    **dict.fromkeys(_LISTS, list),
    **dict.fromkeys((*_PATHS, "library"), str),
    "strict": bool,
}
_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def project_settings(folder: Path) -> dict[str, Any]:
    """Defaults of the command from ``[tool.smp_advisor]`` in the nearest pyproject.toml.

    Raises
    ------
    AdvisorError
        If the file cannot be read, or has an unknown setting.
    """
    path = next((place for parent in (folder, *folder.parents) if (place := parent / "pyproject.toml").is_file()), None)
    if path is None:
        return {}
    try:
        table = tomllib.loads(read_bytes(path, CONFIGURATION).decode("utf-8")).get("tool", {}).get("smp_advisor", {})
    except (OSError, ValueError) as error:
        raise AdvisorError(f"{path} cannot be read: {error}.") from None
    for name, value in table.items():
        if name not in _SETTINGS or not isinstance(value, _SETTINGS[name]):
            raise AdvisorError(f"{path}: [tool.smp_advisor] has no setting {name} = {value!r}.")
    defaults = {name: tuple(map(str.upper, map(str, value))) for name, value in table.items() if name in _LISTS}
    paths = {name: path.parent / value for name, value in table.items() if name in _PATHS}
    return {**table, **defaults, **paths}


def scripts_of(arguments: Iterable[str]) -> list[str]:
    """The files that the arguments name: files, folders with their scripts, patterns, and "-".

    Raises
    ------
    AdvisorError
        If a folder or pattern has no script, or if there are too many.
    """
    paths: dict[str, None] = {}
    for argument in arguments:
        matches = list(_matches(argument))
        if not matches:
            raise AdvisorError(f"{argument} has no .py file and no notebook.")
        paths |= dict.fromkeys(matches)
        if len(paths) > _MOST_FILES:
            raise AdvisorError(f"More than {_MOST_FILES:,} files: pass a smaller folder.")
    return list(paths)


def _matches(argument: str) -> Iterator[str]:
    path = Path(argument)
    if argument == "-" or path.is_file():
        yield argument
    elif path.is_dir():
        for file in sorted(path.rglob("*")):
            inside = file.relative_to(path).parts
            if file.suffix in _SUFFIXES and not any(part.startswith(".") for part in inside) and file.is_file():
                yield str(file)
    elif glob.has_magic(argument):
        yield from sorted(name for name in glob.iglob(argument, recursive=True) if Path(name).suffix in _SUFFIXES)  # noqa: PTH207 - of a pattern that may be absolute
    else:
        yield argument  # the check reports that it does not exist


def selected_ids(select: tuple[str, ...], ignore: tuple[str, ...]) -> list[str] | None:
    """The ids of the checks that count; None if all do."""
    if not select and not ignore:
        return None
    return [name for name in catalog() if _counts(name, select, ignore)]


def _counts(identifier: str, select: tuple[str, ...], ignore: tuple[str, ...]) -> bool:
    return (not select or identifier.startswith(select)) and not (ignore and identifier.startswith(ignore))


def selected(report: Report, select: tuple[str, ...], ignore: tuple[str, ...]) -> Report:
    """The report with the findings whose ids begin with one of `select`, or any, and with none of `ignore`."""
    if not select and not ignore:
        return report
    findings = tuple(finding for finding in report.findings if _counts(finding.id, select, ignore))
    return replace(report, findings=findings)


def as_annotations(reports: Iterable[Report]) -> str:
    """Workflow commands that GitHub Actions shows next to the lines."""
    return "\n".join(_annotation(finding) for report in reports for finding in report.findings)


def _annotation(finding: Finding) -> str:
    places = {"file": finding.path, "line": finding.line, "col": finding.column, "title": finding.id}
    if finding.end_line >= finding.line:
        places |= {"endLine": finding.end_line, "endColumn": finding.end_column}
    fields = ",".join(f"{name}={_escaped(str(value), properties=True)}" for name, value in places.items())
    text = _escaped(f"{finding.message} {finding.consequence} Instead: {finding.remedy}", properties=False)
    return f"::{_LEVELS[finding.severity]} {fields}::{text}"


def _escaped(text: str, *, properties: bool) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if properties else text
