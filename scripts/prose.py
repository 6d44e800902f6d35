"""Find phrases that the texts of this project do not use, and count variable names without a meaning.

Run it with ``python scripts/prose.py [FOLDER...]``. It reads strings, docstrings and comments of the code, the
data files, the pages and the notebooks, and prints file, line, phrase and replacement for each phrase of
``scripts/prose.toml``. The exit status is 1 if there is any, or if the package has more of the listed variable names
than the data file allows.
"""

from __future__ import annotations

import ast
import gc
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
_CODE = re.compile(r"``[^`]*``|`[^`\n]*`|https?://\S+")
_STRING = r'"""(?s:.*?)"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
_PYTHON = re.compile(_STRING + r"|#[^\n]*")
_TYPESCRIPT = re.compile(_STRING + r"|`(?:[^`\\]|\\.)*`|//[^\n]*|/\*(?s:.*?)\*/")
_TOML_KEY = re.compile(r"[\w.-]+ *= *(?=[\"'\[{\dtf])")
_BLOCK = re.compile(r"(?ms)^```.*?^```")
_ABBREVIATION = re.compile(r"\b[A-Z]{2,6}\b")
_UNRELEASED = re.compile(r"(?s)## \[Unreleased\].*?(?=\n## |\Z)")


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """A phrase to avoid."""

    pattern: re.Pattern[str]
    instead: str
    bad: str
    good: str


@dataclass(frozen=True, kw_only=True)
class Match:
    """A place where a text uses a phrase to avoid."""

    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: write {self.instead}"


@cache
def rules() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "prose.toml").read_text("utf-8"))


@cache
def phrases() -> tuple[Phrase, ...]:
    return tuple(
        Phrase(pattern=re.compile(entry.pop("pattern").replace(" ", r"\s+"), re.IGNORECASE), **entry)
        for entry in (dict(entry) for entry in rules()["phrase"])
    )


def files(only: tuple[str, ...] = ()) -> Iterator[Path]:
    """Files whose texts are read: all, or those below some folders."""
    for pattern in rules()["texts"]:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if (
                path.is_file()
                and path.suffix in rules()["suffixes"]
                and name.startswith(only or "")
                and not name.startswith(tuple(rules()["left_out"]))
            ):
                yield path


@cache
def defined_abbreviations() -> frozenset[str]:
    """Abbreviations that pages may use: general ones, and those of the glossary."""
    glossary = tomllib.loads((ROOT / "smp_advisor" / "notebook" / "data" / "glossary.toml").read_text("utf-8"))
    terms = {entry.get("short", entry["term"]) for entry in glossary["term"]}
    return frozenset(terms.union(rules()["common_abbreviations"]))


def texts(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """The texts of a file, each with the line it begins on."""
    if path.suffix == ".py":
        yield from _python_texts(source)
    elif path.suffix == ".ipynb":
        yield from _notebook_texts(source)
    elif path.suffix in {".ts", ".js", ".css"}:
        yield from _matched(_TYPESCRIPT, source)
    elif path.suffix in {".in", ".sh"}:
        yield from _matched(_PYTHON, source)
    elif path.suffix == ".toml":
        yield 1, _TOML_KEY.sub("", source)
    elif path.name == "CHANGELOG.md":
        unreleased = _UNRELEASED.search(source)
        if unreleased:
            yield source[: unreleased.start()].count("\n") + 1, unreleased[0]
    else:
        yield 1, source


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    parts: set[int] = set()
    for node in _nodes(source):
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            yield node.lineno, "".join(getattr(part, "value", "{}") if _is_text(part) else "{}" for part in node.values)
        elif _is_text(node) and id(node) not in parts:
            yield node.lineno, node.value
    yield from _joined_comments(_comments(source))


@cache
def _nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source)))


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments with their lines. In Python 3.11, a string of any kind ends at the next quotation mark of its kind."""
    line, end = 1, 0
    for match in _PYTHON.finditer(source):
        line += source.count("\n", end, match.start())
        end = match.start()
        if match[0].startswith("#"):
            yield line, match[0]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _joined_comments(comments: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Comments on consecutive lines are one text."""
    began, lines = 0, []
    for line, comment in comments:
        if lines and line != began + len(lines):
            yield began, "\n".join(lines)
            lines = []
        if not lines:
            began = line
        lines.append(comment.lstrip("# "))
    if lines:
        yield began, "\n".join(lines)


def _matched(pattern: re.Pattern[str], source: str) -> Iterator[tuple[int, str]]:
    for match in pattern.finditer(source):
        text = re.sub(r"\$\{[^}]*\}", "{}", match[0]).strip("`")
        yield source[: match.start()].count("\n") + 1, re.sub(r"(?m)^\s*(//|#|\*)", "", text)


def _notebook_texts(source: str) -> Iterator[tuple[int, str]]:
    for number, cell in enumerate(json.loads(source)["cells"], start=1):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield number, text
        else:
            yield from ((number, part) for _, part in _matched(_PYTHON, text))


def matches(path: Path, source: str) -> Iterator[Match]:
    """Phrases to avoid in the texts of a file."""
    for began, text in texts(path, source):
        plain = _CODE.sub(lambda code: "`" + "\n" * code[0].count("\n") + "`", text)
        for phrase in phrases():
            for match in phrase.pattern.finditer(plain):
                line = began + plain[: match.start()].count("\n")
                yield Match(
                    path=_shown(path),
                    line=line,
                    phrase=" ".join(match[0].split()),
                    instead=phrase.instead,
                )
        if path.suffix in {".md", ".ipynb"}:
            yield from _undefined_abbreviations(path, began, plain)


def _undefined_abbreviations(path: Path, began: int, text: str) -> Iterator[Match]:
    """Abbreviations of a page that neither the glossary nor the page defines."""
    prose = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for match in _ABBREVIATION.finditer(prose):
        if match[0] not in defined_abbreviations() and f"({match[0]})" not in prose:
            line = began + prose[: match.start()].count("\n")
            yield Match(path=_shown(path), line=line, phrase=match[0], instead="it out, or define it in the glossary")


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def empty_names() -> int:
    """Bindings of a name without a meaning in the package: variables, parameters, attributes."""
    names = frozenset(rules()["empty_names"]["names"])
    sources = (path.read_text("utf-8") for path in ROOT.glob("smp_advisor/**/*.py"))
    return sum(_bound(node) in names for source in sources for node in _nodes(source))


def _bound(node: ast.AST) -> str:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return node.arg if isinstance(node, ast.arg) else ""


def main() -> int:
    """Print the places to reword; 1 if there are any."""
    gc.disable()  # a collection would read the nodes of all trees again
    places = [match for path in files(tuple(sys.argv[1:])) for match in matches(path, path.read_text("utf-8"))]
    for place in places:
        print(place)
    names, most = empty_names(), rules()["empty_names"]["most"]
    if names > most:
        print(f"The package binds names without a meaning {names:,} times, {most:,} are allowed: use the noun.")
    return int(bool(places) or names > most)


if __name__ == "__main__":
    sys.exit(main())
