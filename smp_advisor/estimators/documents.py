"""The text that is checked: Python, JSON or YAML, pasted or in a file, or an object written out."""

from __future__ import annotations

import json
import pprint
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.source import Source, read

__all__ = ["Dialect", "Document", "open_document", "with_text"]

Dialect = Literal["python", "json", "yaml"]

_LARGEST = 1_000_000
_DEEPEST = 40
_PLAIN = (bool, int, float, str)
_FILES: dict[str, Dialect] = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".py": "python", ".ipynb": "python"}
_CHECKED_HERE = ("%%smp_check",)
_TYPESET = str.maketrans("\u00a0\u2007\u202f\u201c\u201d\u2018\u2019", "   \"\"''")
"""No-break spaces and curly quotes."""
_ELLIPSIS = re.compile(r"([ \t]*)(?:\.\.\.|\u2026)[ \t]*,?[ \t]*")
_MARK = "# ..."
_ELIDED = "... stands for what is left out"


@dataclass(frozen=True, slots=True)
class Document:
    """Text to read, what it is written in, and how it was pasted."""

    source: Source
    dialect: Dialect
    pasted: str
    """The text as it was given, magics included; what a corrected version is made from."""

    @property
    def elided(self) -> bool:
        """Whether something is left out."""
        return not self.source.cells and bool(self.source.skipped)

    @property
    def correctable(self) -> bool:
        """Whether a corrected text can be given: a notebook has several cells, an object no text of its own."""
        return not self.source.cells


def with_text(document: Document, text: str) -> Document:
    """The same document with its text changed; what is left out of it stays left out."""
    skipped: tuple[tuple[int, str], ...] = ()
    if document.elided:
        lines = enumerate(text.split("\n"), 1)
        skipped = tuple((number, _ELIDED) for number, line in lines if line.strip() == _MARK)
    return replace(document, source=Source(document.source.path, text, document.source.file, (), skipped), pasted=text)


def open_document(source: object) -> Document:
    """Take what a person has: text, a path, a dictionary.

    Raises
    ------
    AdvisorError
        Where it is none of these, or empty.
    """
    if isinstance(source, Mapping):
        return _of_object(dict(source))
    if isinstance(source, Path) or (isinstance(source, str) and _is_path(source)):
        return _of_file(Path(source).expanduser())
    if not isinstance(source, str):
        raise AdvisorError(
            "An estimator is checked by its cell's text, the path of a file, or a dictionary, not by"
            f" {type(source).__name__}."
        )
    if len(source) > _LARGEST:
        raise AdvisorError(f"The text is longer than {_LARGEST:,} characters: paste the cell that makes the estimator.")
    if not source.strip():
        raise AdvisorError("There is nothing to check: paste a cell, a dictionary, a request or a recipe.")
    return _of_text(source)


def _is_path(text: str) -> bool:
    line = text.strip()
    return "\n" not in line and len(line) < 400 and line.lower().endswith(tuple(_FILES)) and not line.startswith("{")


def _of_object(data: dict[Any, Any]) -> Document:
    try:
        text = pprint.pformat(_shown(data, 0), sort_dicts=False, width=100)
    except Exception as error:  # noqa: BLE001 - whatever an object of someone else's does in its repr
        raise AdvisorError(
            f"The dictionary holds what cannot be shown ({type(error).__name__}): pass plain data."
        ) from None
    return Document(Source("<dictionary>", text), "python", text)


class _Other:
    """Stands for an object that is no plain data: a date in a job's description."""

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
        found = read(path)
        return Document(found, dialect, found.text)
    try:
        if path.stat().st_size > _LARGEST:
            raise AdvisorError(f"{path} is larger than {_LARGEST:,} characters, which no configuration is.")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise AdvisorError(f"{path} cannot be read ({reason}): give the path of a configuration.") from None
    return replace(_of_text(text, dialect), source=Source(str(path), text, path))


def _of_text(text: str, dialect: Dialect | None = None) -> Document:
    if dialect is None and text.lstrip().startswith(("{", "[")) and _is_json(text):
        dialect = "json"
    if dialect is None and not _is_python(text) and _is_yaml(text):
        dialect = "yaml"
    if dialect in ("json", "yaml"):
        return Document(Source("<text>", text), dialect, text)
    text, elided = _as_python(text)
    found = read(text if text.lstrip().startswith("%") else f"{text}\n")
    kept = text
    for magic in _CHECKED_HERE:
        if text.lstrip().startswith(magic):
            kept = text.lstrip().partition("\n")[2]
    source = replace(found, path="<cell>", skipped=tuple((line, _ELIDED) for line in elided))
    if elided:
        kept = _with_ellipses(kept)
    return Document(source, "python", kept)


def _as_python(text: str) -> tuple[str, list[int]]:
    """The text as Python, and the lines of it that say "..."; as it is where nothing makes it Python.

    What is copied from a web page has spaces and quotes of typesetters, and the indent of where it stood.
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


def _with_ellipses(text: str) -> str:
    return "\n".join(line.replace(_MARK, "...") if line.strip() == _MARK else line for line in text.split("\n"))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_python(text: str) -> bool:
    from smp_advisor.reading.edits import parses

    return parses(read(f"{text}\n").text)


def _is_yaml(text: str) -> bool:
    """Whether it looks like a mapping in YAML: a key at the margin that ends its line or has a value."""
    return re.search(r"^[A-Za-z_][\w.-]*:(\s|$)", text, re.MULTILINE) is not None
