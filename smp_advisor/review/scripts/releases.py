"""Releases of the packages of a script, and what their callables accept and assume in each."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import CONFIGURATION, folders_from, read_bytes, rows, table
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.review.scripts.context import Context


Release = tuple[int, int]
"""Major and minor version: patches change no arguments."""
OLDEST, NEWEST = (0, 0), (9999, 0)
ANY = "**"
_PIN = re.compile(
    r"^[ \t\-\"']*([A-Za-z][\w.-]*)(?:\[[\w, ]*\])?[ \t]*((?:[=<>~!]=?=?[ \t]*[\d.*]+[a-z\d.]*[ \t]*,?[ \t]*)+)",
    re.MULTILINE,
)
_BOUND = re.compile(r"([=<>~!]=?)=?[ \t]*(\d+)(?:\.(\d+))?")
_FILES: list[str] = table("smp_advisor.review.scripts", "data/names.toml")["pins"]
_OF_PROJECTS = ("*/requirements.txt",)
_ROOTS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""Files of a project's top folder: what is above belongs to others."""


@dataclass(frozen=True, slots=True)
class Span:
    """Releases that a job may have of a package."""

    first: Release
    last: Release
    where: str
    """The source of the bounds: a file, or the image; empty if there is none."""

    @property
    def known(self) -> bool:
        """Whether something bounds the newest release."""
        return bool(self.where) and self.last < NEWEST


def release(text: str) -> Release:
    """Major and minor number of a version."""
    numbers = re.findall(r"\d+", text)[:2]
    return (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0) if numbers else OLDEST


def span_of(context: Context, package: str) -> Span:
    """Return the releases of a package: those of the image, else those that files of the project allow."""
    if "spans" not in context.memo:
        context.memo["spans"] = _pins(context.trace.modules[0].source.file)
    version = context.settings.versions.get(package)
    spans: dict[str, Span] = context.memo["spans"]
    if package == "lightning":  # the same releases under its older name
        package = next((name for name in ("lightning", "pytorch-lightning") if name in spans), package)
    if version and not spans.get(package, Span(OLDEST, NEWEST, "")).known:
        return Span(release(version), release(version), f"the job has {package} {version}")
    return spans.get(package, Span(OLDEST, NEWEST, ""))


def _pins(script: Path | None) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    for folder in folders_from(script) if script is not None else ():
        is_project = any((folder / name).exists() for name in _ROOTS)
        for pattern in (*_FILES, *(_OF_PROJECTS if is_project else ())):
            for path in sorted(folder.glob(pattern))[:4]:
                try:
                    text = read_bytes(path, CONFIGURATION).decode("utf-8", "replace")
                except (OSError, AdvisorError):
                    continue
                for name, span in _in_text(text, path.name).items():
                    spans.setdefault(name, span)
        if is_project:
            break
    return spans


def _in_text(text: str, where: str) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    for match in _PIN.finditer(text):
        first, last = OLDEST, NEWEST
        for kind, major, minor in _BOUND.findall(match[2]):
            bound = int(major), int(minor or 0)
            if kind.startswith("=") or kind == "~=":
                first, last = bound, bound if minor else (bound[0], 9999)
            elif kind.startswith(">"):
                first = bound
            elif kind == "<":  # below 5 is 4.9999
                last = (bound[0], bound[1] - 1) if bound[1] else (bound[0] - 1, 9999)
            elif kind == "<=":
                last = bound
        spans.setdefault(match[1].lower().replace("_", "-"), Span(first, last, where))
    return spans


@dataclass(frozen=True, slots=True)
class Row:
    """One argument with one default, from a release on and before another."""

    since: Release
    until: Release
    default: Any
    instead: str


@cache
def _table() -> dict[str, dict[str, tuple[Row, ...]]]:
    rows_by_callable: dict[str, dict[str, list[Row]]] = {}
    for line in rows("smp_advisor.review.scripts", "data/arguments.csv"):
        since = release(line["since"]) if line["since"] else OLDEST
        until = release(line["until"]) if line["until"] else NEWEST
        default = ast.literal_eval(line["default"]) if line["default"] else ...
        row = Row(since, until, default, line["instead"])
        for argument in line["arguments"].split(" "):
            rows_by_callable.setdefault(line["callable"], {}).setdefault(argument, []).append(row)
    return {
        name: {key: tuple(sorted(several, key=attrgetter("since"))) for key, several in table.items()}
        for name, table in rows_by_callable.items()
    }


@cache
def _renamed() -> dict[str, str]:
    return dict(table("smp_advisor.review.scripts", "data/processes.toml")["renamed"])


def callable_of(name: str) -> str:
    """Return the name in the table of a dotted name: ``trl.trainer.sft_config.SFTConfig`` is ``trl.SFTConfig``."""
    if ".experimental." in name or name.startswith("torch.distributed._composable.fully_shard"):  # of FSDP 1
        return ""
    package, last = name.partition(".")[0], name.rpartition(".")[2]
    package = "lightning" if package in ("pytorch_lightning", "lightning_fabric") else package.replace("_", "-")
    return f"{package}.{last}" if f"{package}.{last}" in _table() else ""


def derived_from(name: str) -> str:
    """Return the callable in the table that one of another package probably extends: ``...TrainingArguments``."""
    last = name.rpartition(".")[2]
    ends = next((end for end in ("TrainingArguments", "Trainer") if last.endswith(end) and last != end), "")
    own = name.startswith(("transformers.", "trl.", "lightning", "pytorch_lightning", "torch."))
    return f"transformers.{ends}" if ends and not own else ""


def base_of(name: str) -> str:
    """Return the callable of another package whose arguments it accepts, too."""
    return _table()[name][""][-1].instead


def accepts(name: str, argument: str, at: Release) -> bool:
    """Return whether a release accepts the argument; also if it has no such callable, which is another defect."""
    arguments = _table()[name]
    return any(row.since <= at < row.until for key in (argument, ANY) for row in arguments.get(key, ()))


def arguments_of(name: str) -> list[str]:
    """Return every argument of a callable, in any release."""
    return [argument for argument in _table()[name] if argument not in ("", ANY)]


def exists(name: str, at: Release) -> bool:
    """Return whether a release has the callable."""
    return any(row.since <= at < row.until for row in _table()[name][""])


def ever(name: str, argument: str) -> tuple[Release, Release] | None:
    """First and last bound of an argument; None if no release in the table has it."""
    several = _table()[name].get(argument)
    return (several[0].since, several[-1].until) if several else None


def instead_of(name: str, argument: str) -> str:
    """Return the argument that replaces one; empty if none is known."""
    several = _table()[name].get(argument, ())
    replacement = next((row.instead for row in reversed(several) if row.instead), "")
    return replacement or _renamed().get(argument, "")


def default_of(name: str, argument: str, at: Release) -> Any:
    """Default in a release; Ellipsis if it is not a literal or the argument does not exist."""
    last = at if at < NEWEST else (9998, 0)
    several = _table().get(name, {}).get(argument, ())
    return next((row.default for row in several if row.since <= last < row.until), ...)


def newest(package: str) -> Release:
    """Return the newest release of a package in the table."""
    return _read()[package][1]


def oldest(package: str) -> Release:
    """Return the oldest release of a package in the table."""
    return _read()[package][0]


@cache
def _read() -> dict[str, tuple[Release, Release]]:
    text = (files("smp_advisor.review.scripts") / "data" / "arguments.csv").read_text(encoding="utf-8")
    headers = re.findall(r"^# ([\w-]+) ([\d.]+) to ([\d.]+) ", text, re.MULTILINE)
    return {name: (release(first), release(last)) for name, first, last in headers}
