"""``[tool.smp_advisor]`` of the nearest ``pyproject.toml``: settings of a project for the command.

The checked folder can be somebody else's: no key writes a file.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.files import CONFIGURATION, has_too_many_values, read_bytes
from smp_advisor.scripts.settings import checked_libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Configuration", "plan_parameters", "read_configuration", "read_object"]

_MOST_PARENTS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Settings of a project; the options of the command line take precedence."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    library: str | None = None
    plan: Mapping[str, Any] | None = None
    hyperparameters: Mapping[str, Any] | None = None
    strict: bool = False


_KINDS: dict[str, tuple[type, str]] = {
    "select": (list, "a list of texts"),
    "ignore": (list, "a list of texts"),
    "exclude": (list, "a list of texts"),
    "library": (str, "a text"),
    "plan": (dict, "a table or the path of a JSON file"),
    "hyperparameters": (dict, "a table or the path of a JSON file"),
    "strict": (bool, "true or false"),
}


def read_configuration(paths: Iterable[str]) -> Configuration:
    """The table in the nearest ``pyproject.toml`` that has one, from the common folder of `paths` upward.

    The search ends at the top of a Git repository. Without a table, every setting has its default.

    Raises
    ------
    AdvisorError
        If a ``pyproject.toml`` on the way cannot be read, or the table has an unknown key or a value of another kind.
    """
    folder = _common_folder(paths)
    for place in (folder, *list(folder.parents)[:_MOST_PARENTS]):
        file = place / "pyproject.toml"
        if file.is_file():
            table = _table(file)
            if table is not None:
                return _configuration(file, table)
        if (place / ".git").exists():
            break
    return Configuration()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises
    ------
    AdvisorError
        If it cannot be read, or contains something else.
    """
    try:
        text = read_bytes(path, CONFIGURATION).decode("utf-8")
        content = None if has_too_many_values(text) else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise AdvisorError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise AdvisorError(f"{path} must contain a JSON object: names and their values.")
    return content


def plan_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the library; also of the value of "modelparallel" in a distribution."""
    inner = parameters.get("parameters", parameters)
    return inner if isinstance(inner, dict) else parameters


def _common_folder(paths: Iterable[str]) -> Path:
    """The innermost folder that contains all `paths`; of patterns, the part without one."""
    folders = []
    for text in paths:
        if text in ("", "-") or "\0" in text:
            continue
        path = Path(text).absolute()
        while not os.path.isdir(path) and path != path.parent:  # noqa: PTH112 - pathlib's fails for long names
            path = path.parent
        folders.append(path.resolve())
    if not folders:
        return Path.cwd()
    candidates = (folders[0], *folders[0].parents)
    return next((place for place in candidates if all(map(_inside(place), folders))), folders[0])


def _inside(place: Path) -> Callable[[Path], bool]:
    return lambda folder: folder.is_relative_to(place)


def _table(file: Path) -> dict[str, Any] | None:
    try:
        tool = tomllib.loads(read_bytes(file, CONFIGURATION).decode("utf-8")).get("tool", {})
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AdvisorError(f"{file} cannot be read as TOML ({reason}): correct it, or pass --no-config.") from None
    table = tool.get("smp_advisor") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise AdvisorError(f"tool.smp_advisor in {file} must be a table.")
    return table


def _configuration(file: Path, table: dict[str, Any]) -> Configuration:
    values: dict[str, Any] = {}
    value: Any
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _KINDS:
            near = difflib.get_close_matches(name, _KINDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(_KINDS)}."
            raise AdvisorError(f"[tool.smp_advisor] in {file} has the unknown key {key!r}: {hint}")
        kind, words = _KINDS[name]
        if kind is dict and isinstance(value, str):
            value = read_object(file.parent / value)  # noqa: PLW2901 - a path stands for its content
        texts = not isinstance(value, list) or all(isinstance(entry, str) for entry in value)
        if not (isinstance(value, kind) and texts):
            raise AdvisorError(f"{key} of [tool.smp_advisor] in {file} must be {words}.")
        values[name] = tuple(value) if isinstance(value, list) else value
    if "plan" in values:
        values["plan"] = plan_parameters(values["plan"])
    library = values.get("library")
    if library is not None and library not in checked_libraries():
        raise AdvisorError(
            f"library of [tool.smp_advisor] in {file} must be one of {', '.join(checked_libraries())}, not {library!r}."
        )
    return Configuration(**values)
