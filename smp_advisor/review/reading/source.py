"""The text of a script, a notebook or a cell, and changes to it."""

from __future__ import annotations

import ast
import os
import re
import tokenize
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from smp_advisor.core.files import NOTEBOOK, SCRIPT, Text, json_values, read_bytes, user_path
from smp_advisor.errors import AdvisorError

_LOOKS_LIKE_A_PATH = re.compile(r"[^\n\r]{1,400}\.(?:py|pyw|ipynb)\s*$", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n|\r|\n")
_SHELL = re.compile(r"[A-Za-z_][\w.]*\s*=\s*[!%]\s*\w")
_CELL_MAGICS_OF_PYTHON = ("%%time", "%%timeit", "%%capture", "%%smp_check", "%%smp_local", "%%prun", "%%writefile")


class UnreadableScriptError(AdvisorError):
    """A path without a readable script."""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start`` to ``end`` of the text."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unresolved:
    """Something that could not be followed, so that checks do not cover it."""

    path: str
    line: int
    what: str
    """One sentence: the name or construct, the reason, and the affected checks."""


@dataclass(frozen=True, slots=True)
class Source:
    """Text to check, with the origin of its lines."""

    path: str
    text: str
    file: Path | None = None
    cells: tuple[tuple[int, int], ...] = ()
    """First line in `text` and number of each code cell of a notebook, in ascending order."""
    skipped: tuple[tuple[int, str], ...] = ()
    """First line and reason of each part that is left out: cells of a notebook that are not Python, or "..."."""
    lines: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        # str.splitlines also splits at characters that do not end a line of Python.
        object.__setattr__(self, "lines", tuple(_LINE_END.split(self.text)))

    def starts(self) -> tuple[int, ...]:
        """Return the first character of each line."""
        return _starts(self.text)

    def line(self, number: int) -> str:
        """Return the line `number`, counted from 1; empty if there is none."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def column(self, line: int, column_bytes: int) -> int:
        """Characters before a column that the parser counts in bytes of UTF-8."""
        text = self.line(line)
        return column_bytes if text.isascii() else len(text.encode()[:column_bytes].decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        """First and last character of `node` in the text."""
        starts, last = self.starts(), node.end_lineno or node.lineno
        return Span(
            starts[node.lineno - 1] + self.column(node.lineno, node.col_offset),
            starts[last - 1] + self.column(last, node.end_col_offset or 0),
        )

    def left_out(self, node: ast.expr) -> str:
        """Return why a part of `node` is not in the text; empty if all of it is."""
        if self.cells or not self.skipped:
            return ""
        last = node.end_lineno or node.lineno
        return next((why for line, why in self.skipped if node.lineno < line <= last), "")

    def locate(self, number: int) -> tuple[str, int]:
        """Return the path and line for a report; for a notebook, the cell and the line in the cell."""
        for first, cell in reversed(self.cells):
            if number >= first:
                return f"{self.path}#cell-{cell}", number - first + 1
        return self.path, number

    def unresolved(self, number: int, what: str) -> Unresolved:
        """Return a note about line `number`."""
        path, line = self.locate(number)
        return Unresolved(path=path, line=line, what=what)


@lru_cache(maxsize=64)
def _starts(text: str) -> tuple[int, ...]:
    return (0, *(match.end() for match in _LINE_END.finditer(text)))


def read(path_or_source: str | Path) -> Source:
    """Read a path to a ``.py`` or ``.ipynb`` file, or take text as it is."""
    if isinstance(path_or_source, Path):
        return _read_file(path_or_source)
    if not isinstance(path_or_source, str):
        raise UnreadableScriptError(
            f"A script is checked by its path or its text, not by {type(path_or_source).__name__}."
        )
    line = "" if isinstance(path_or_source, Text) else path_or_source.strip()
    if "\n" not in line and _LOOKS_LIKE_A_PATH.fullmatch(line):
        return _read_file(user_path(line, UnreadableScriptError))
    if not path_or_source.isascii() and path_or_source.encode("utf-8", "ignore").decode() != path_or_source:
        raise UnreadableScriptError("The text has half of a surrogate pair, which no file has: paste it again.")
    if len(path_or_source) > SCRIPT:
        raise UnreadableScriptError(f"The text is longer than {SCRIPT:,} characters, which no script is.")
    cell = path_or_source.lstrip().startswith("%")
    return Source("<cell>" if cell else "<source>", _without_magics(path_or_source))


def _read_file(path: Path) -> Source:
    name = str(path)
    if os.path.isdir(path):  # noqa: PTH112 - pathlib's fails for a path that is too long
        raise UnreadableScriptError(f"{name} is a folder: give the path of the training script in it.")
    try:
        raw = read_bytes(path, NOTEBOOK if path.suffix.lower() == ".ipynb" else SCRIPT)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or "cannot be opened"
        raise UnreadableScriptError(f"{name} cannot be read ({reason}): give the path of a script.") from None
    text = _decode(raw, name)
    if path.suffix.lower() == ".ipynb":
        return _notebook(text, path)
    return Source(name, text, path)


def _decode(raw: bytes, name: str) -> str:
    if b"\x00" in raw[:8192]:
        raise UnreadableScriptError(f"{name} is not text: give the path of a Python script or a notebook.")
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(raw).readline)
        return raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise UnreadableScriptError(f"{name} is not text in the encoding it declares (UTF-8 without one).") from None


def _notebook(text: str, path: Path) -> Source:
    try:
        cells = json_values(text)["cells"]
        code = [
            (number, "".join(cell["source"])) for number, cell in enumerate(cells, 1) if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError):
        raise UnreadableScriptError(f"{path} is not a notebook of format 4: save it with Jupyter first.") from None
    if sum(len(source) for _, source in code) > SCRIPT:
        raise UnreadableScriptError(f"{path} has more than {SCRIPT:,} characters of code, which no script has.")
    parts: list[str] = []
    starts: list[tuple[int, int]] = []
    skipped: list[tuple[int, str]] = []
    line = 1
    for number, source in code:
        starts.append((line, number))
        plain = _without_magics(source)
        reason = _why_not_python(plain)
        if reason:
            skipped.append((line, reason))
            plain = "\n" * source.count("\n")
        parts.append(plain)
        line += source.count("\n") + 1
    return Source(str(path), "\n".join(parts), path, tuple(starts), tuple(skipped))


def _why_not_python(text: str) -> str:
    try:
        parsed(text)
    except SyntaxError as error:
        return error.msg or "invalid syntax"
    except (ValueError, RecursionError, MemoryError):
        return "not readable"
    return ""


def parsed(text: str, path: str = "<unknown>") -> ast.Module:
    """Return the tree of Python 3.12 or older, silently: warnings about the script are not reported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text, filename=path)
        except SyntaxError:
            plain = _with_old_syntax(_ELIDED.sub(r"\1**_", text))
            first, *more = re.findall(r"^([ \t]*)[^\s#]", plain, re.MULTILINE) or [""]
            least = min(more, key=len, default=first)
            if not least:
                return ast.parse(plain, filename=path)
            if not first:  # a text that was copied from the middle of its first line on
                plain = re.sub(r"^(?=[^\s#])", least, plain, count=1, flags=re.MULTILINE)
            block = ast.parse(f"if 1:\n{plain}", filename=path)
            ast.increment_lineno(block, -1)
            return ast.Module(block.body[0].body, [])  # type: ignore[attr-defined]


_ELIDED = re.compile(r"(?<=[,({])(\s*)\.\.\.(?=\s*[,)}])")
"""Arguments or keys that a text leaves out: they may be any."""

_BRACKETS = r"\[[^\[\]\n]*(?:\[[^\[\]\n]*\][^\[\]\n]*)*\]"
_GENERIC = re.compile(rf"^([ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+\w+)({_BRACKETS})", re.MULTILINE)
_ALIAS = re.compile(rf"^([ \t]*)(type[ \t]+)(\w+)((?:{_BRACKETS})?[ \t]*)(?==)", re.MULTILINE)
_QUOTED = re.compile(r"#[^\n]*|(?<!\w)(?P<prefix>[A-Za-z]{0,2})(?P<quote>\"\"\"|\'\'\'|\"|\')")


def _with_old_syntax(text: str) -> str:
    """Python 3.12 as Python 3.11 with the same places: parameters of types are blank, texts in f-strings are others."""
    text = _GENERIC.sub(lambda match: match[1] + " " * len(match[2]), text)
    text = _ALIAS.sub(lambda match: match[1] + match[3] + " " * len(match[2] + match[4]), text)
    letters, place = list(text), 0
    while (match := _QUOTED.search(text, place)) is not None:
        place, quote, depth = match.end(), match["quote"], 0
        while quote and place < len(text):
            inner = _QUOTED.match(text, place) if depth else None
            if inner is not None and inner["quote"]:
                end, count = text.find(inner["quote"], inner.end()), len(inner["quote"])
                if end < 0:
                    return text
                swapped = "'" if quote[0] == '"' else '"'
                letters[inner.end() - count : inner.end()] = letters[end : end + count] = swapped * count
                for position in range(inner.end(), end):
                    letters[position] = "_" if text[position] in "\\'\"\n{}" else text[position]
                place = end + count
            elif not depth and text.startswith(quote, place):
                place += len(quote)
                break
            elif not depth and (text[place] == "\\" or text.startswith("{{", place)):
                place += 2
            else:
                if "f" in match["prefix"].lower():
                    depth += (text[place] == "{") - (text[place] == "}" and depth > 0)
                place += 1
    return "".join(letters)


def _without_magics(text: str) -> str:
    """Replace lines of IPython by comments or blank lines, so that line numbers stay the same."""
    lines = text.split("\n")
    if not any(line.lstrip().startswith(("%", "!", "?")) or _SHELL.match(line.lstrip()) for line in lines):
        return text
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_CELL_MAGICS_OF_PYTHON):
        return "\n".join("" for _ in lines)  # another language
    if first.startswith("%%writefile") and ".py" not in first:
        return "\n".join("" for _ in lines)
    return "\n".join(_plain(line) for line in lines)


def _plain(line: str) -> str:
    stripped = line.lstrip()
    indent = line[: len(line) - len(stripped)]
    if stripped.startswith(("!", "%%", "?")) or re.match(r"%\w", stripped):
        return indent + "pass  # " + stripped if indent else "# " + stripped
    if _SHELL.match(stripped):
        return indent + stripped.partition("=")[0] + "= None"
    return line
