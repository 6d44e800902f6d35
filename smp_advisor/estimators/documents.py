"""The checked text (Python, JSON, YAML or TOML; pasted, in a file, or an object as text), and the files next to it."""

from __future__ import annotations

import ast
import json
import pprint
import re
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.strategies import is_toml
from smp_advisor.files import CONFIGURATION, NOTEBOOK, SCRIPT, read_bytes
from smp_advisor.reading.source import Source, read

_WRITES = re.compile(r"\s*%%writefile\s+(?:-a\s+)?(?P<path>\S+)[^\n]*\n(?P<text>.*)", re.DOTALL)
_MOST_FOLDERS = 3
"""Folders above the file in which a relative path of the text may start."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Files near the one that was checked; none for pasted text."""

    file: Path | None

    def text(self, *parts: str) -> str | None:
        """Text of a file by its path in the configuration, or of the cell that writes it; None if there is none."""
        if self.file is None or not all(parts):
            return None
        relative = PurePosixPath(*(part.replace("\0", "") for part in parts))
        if relative.is_absolute():
            relative = PurePosixPath(relative.name)  # a path in the container
        most = SCRIPT if relative.suffix == ".py" else CONFIGURATION
        for folder in (self.file.parent, *list(self.file.parent.parents)[:_MOST_FOLDERS]):
            try:
                return read_bytes(folder / relative, most).decode("utf-8")
            except (OSError, ValueError):
                continue
        return self._written(relative.name)

    def _written(self, name: str) -> str | None:
        if self.file is None or self.file.suffix != ".ipynb":
            return None
        try:
            cells = json.loads(read_bytes(self.file, NOTEBOOK))["cells"]
            texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        for text in texts:
            match = _WRITES.match(text)
            if match is not None and PurePosixPath(match["path"]).name == name:
                return match["text"]
        return None


Dialect = Literal["python", "json", "yaml", "toml"]

_DEEPEST = 40
_PLAIN = (bool, int, float, str)
_FILES: dict[str, Dialect] = {
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".py": "python",
    ".ipynb": "python",
}
_CHECKED_HERE = "%%smp_check"
_TYPESET = str.maketrans("\u00a0\u2007\u202f\u201c\u201d\u2018\u2019", "   \"\"''")
"""No-break spaces and curly quotes."""
_ELLIPSIS = re.compile(r"([ \t]*)(?:\.\.\.|\u2026)[ \t]*,?[ \t]*")
_MARK = "# ..."
_SECTION = re.compile(r"^\[\w+\]\s*$", re.MULTILINE)
_YAML_KEY = re.compile(r"^[A-Za-z_][\w.-]*:(\s|$)", re.MULTILINE)
"""A key at the start of a line, with a value or at its end."""
_ELIDED = "... replaces a part of the text"


@dataclass(frozen=True, slots=True)
class Document:
    """A text, its language, and its original form."""

    source: Source
    dialect: Dialect
    pasted: str
    """The original text with its magics, from which the corrected text is made."""

    @property
    def elided(self) -> bool:
        """Whether the text elides a part with an ellipsis."""
        return not self.source.cells and bool(self.source.skipped)

    @property
    def correctable(self) -> bool:
        """Whether the text can be corrected: a notebook has several cells, and TOML is read without places."""
        return not self.source.cells and self.dialect != "toml"


def with_text(document: Document, text: str) -> Document:
    """The same document with changed text; elided parts stay elided."""
    skipped: tuple[tuple[int, str], ...] = ()
    if document.elided:
        lines = enumerate(text.split("\n"), 1)
        skipped = tuple((number, _ELIDED) for number, line in lines if line.strip() == _MARK)
    return replace(document, source=Source(document.source.path, text, document.source.file, (), skipped), pasted=text)


def open_document(source: object) -> Document:
    """Open a configuration: a text, a path or a dictionary."""
    if isinstance(source, Mapping):
        return _of_object(dict(source))
    if isinstance(source, Path) or (isinstance(source, str) and _is_path(source)):
        return _of_file(Path(source).expanduser())
    if not isinstance(source, str):
        raise AdvisorError(f"Pass the text of a cell, the path of a file or a dictionary, not {type(source).__name__}.")
    if len(source) > CONFIGURATION:
        raise AdvisorError(
            f"The text is longer than {CONFIGURATION:,} characters: paste only the cell with the estimator."
        )
    if not source.strip():
        raise AdvisorError("There is nothing to check: paste a cell, a dictionary, a request or a recipe.")
    return _of_text(source)


def _is_path(text: str) -> bool:
    line = text.strip()
    return "\n" not in line and len(line) < 400 and line.lower().endswith(tuple(_FILES)) and not line.startswith("{")


def _of_object(data: dict[Any, Any]) -> Document:
    try:
        text = pprint.pformat(_shown(data, 0), sort_dicts=False, width=100)
    except Exception as error:  # noqa: BLE001 - the repr of any object may fail
        raise AdvisorError(
            f"The dictionary contains an object that cannot be shown ({type(error).__name__}): pass plain data."
        ) from None
    return Document(Source("<dictionary>", text), "python", text)


class _Other:
    """Placeholder for an object that is not plain data, such as a date in the description of a job."""

    def __init__(self, of: object) -> None:
        self._name = type(of).__name__

    def __repr__(self) -> str:
        return f"{self._name}()"


def _shown(data: object, depth: int) -> object:
    if depth > _DEEPEST:
        raise ValueError
    if isinstance(data, Mapping):
        return {key if isinstance(key, _PLAIN) else str(key): _shown(value, depth + 1) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_shown(item, depth + 1) for item in data]
    return data if type(data) in _PLAIN or data is None else _Other(data)


def _of_file(path: Path) -> Document:
    dialect = _FILES.get(path.suffix.lower(), "python")
    if dialect == "python":
        source = read(path)
        return Document(source, dialect, source.text)
    try:
        text = read_bytes(path, CONFIGURATION).decode("utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, bytes that are not UTF-8
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise AdvisorError(f"{path} cannot be read ({reason}): give the path of a configuration.") from None
    return replace(_of_text(text, dialect), source=Source(str(path), text, path))


def _of_text(text: str, dialect: Dialect | None = None) -> Document:
    if dialect is None and text.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            json.loads(text)
            dialect = "json"
    keyed = _YAML_KEY.search(text) is not None
    if dialect is None and keyed and (_only_annotates(text) or not _is_python(text)):
        dialect = "yaml"
    if dialect is None and _SECTION.search(text) and is_toml(text):
        dialect = "toml"
    if dialect in ("json", "yaml", "toml"):
        return Document(Source("<text>", text), dialect, text)
    text, elided = _as_python(text)
    source = read(text if text.lstrip().startswith("%") else f"{text}\n")
    pasted = text
    if text.lstrip().startswith(_CHECKED_HERE):
        pasted = text.lstrip().partition("\n")[2]
    source = replace(source, path="<cell>", skipped=tuple((line, _ELIDED) for line in elided))
    if elided:
        lines = pasted.split("\n")
        pasted = "\n".join(line.replace(_MARK, "...") if line.strip() == _MARK else line for line in lines)
    return Document(source, "python", pasted)


def _as_python(text: str) -> tuple[str, list[int]]:
    """The text as Python, and its lines that are "..."; the original text if it cannot be read as Python.

    Text from a web page has typographic spaces and quotes, and the indentation of its place there.
    """
    plain = text.translate(_TYPESET)
    straight = textwrap.dedent(plain)
    for candidate in (text, plain, straight):
        if _is_python(candidate):
            return candidate, []
    lines = straight.split("\n")
    elided = [number for number, line in enumerate(lines, 1) if _ELLIPSIS.fullmatch(line)]
    for number in elided:
        lines[number - 1] = _ELLIPSIS.sub(r"\1" + _MARK, lines[number - 1])
    marked = "\n".join(lines)
    return (marked, elided) if elided and _is_python(marked) else (text, [])


def _is_python(text: str) -> bool:
    from smp_advisor.reading.module import parses

    return parses(read(f"{text}\n").text)


def _only_annotates(text: str) -> bool:
    """Whether each statement is ``key: value``, which annotates a name in Python and is an entry in YAML."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(statement, ast.AnnAssign) and statement.value is None for statement in statements)
