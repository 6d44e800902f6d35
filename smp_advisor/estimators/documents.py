"""The checked text (Python, JSON or YAML; pasted, in a file, or an object as text), and the files next to it.

YAML is read as values with places: plain data only, with references between entries.
"""

from __future__ import annotations

import ast
import json
import pprint
import re
import textwrap
from collections.abc import Mapping as Dictionary
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import yaml

from smp_advisor.core.files import (
    CONFIGURATION,
    NOTEBOOK,
    SCRIPT,
    Text,
    folders_from,
    json_values,
    read_bytes,
    table,
    user_path,
)
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.shell import is_shell
from smp_advisor.review.reading.commands import DOCUMENT
from smp_advisor.review.reading.source import Source, Span, read
from smp_advisor.review.reading.values import Collection, Constant, Entry, Mapping, Unknown, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRITES = re.compile(r"\s*%%writefile\s+(?:-a\s+)?(?P<path>\S+)[^\n]*\n(?P<text>.*)", re.DOTALL)
_PRINTS = re.compile(r"\s*cat\b(?=[^\n]*<<)(?=[^\n]*>)[^\n]*")
_TARGET = re.compile(r">>?[ \t]*['\"]?([^\s<>'\"]+)")
_ASSIGNED = re.compile(r"^(\w+)\s*=\s*[\"']([^\"'\n]{1,200})[\"']", re.MULTILINE)
_EXPORTED = re.compile(r"^os\.environ\[[\"'](\w+)[\"']\]\s*=\s*(?:(\w+)\s*$|[\"']([^\"'\n]{1,200})[\"'])", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
FETCHES = re.compile(
    r"\b(?:git clone|wget|curl|cp|mv|cd|chdir|tee|unzip|untar)\b|urlretrieve|extractall|download|write_text|\bdump\("
    r"|\bopen\([^)\n]{0,200}['\"][wax]"
)
"""Text that makes files, or goes to a folder, so that a file that is not here is not missing."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Files near the one that was checked; none for pasted text."""

    file: Path | None
    text: Source | None = None
    """The checked text itself."""

    def complete(self) -> bool:
        """Return whether the files that the text names are here before it runs, as far as its code shows."""
        try:
            return self.file is not None and not FETCHES.search(read_bytes(self.file, NOTEBOOK).decode("utf-8"))
        except (OSError, ValueError):
            return False

    def source(self, *parts: str) -> Source | None:
        """Return a file by its path in the configuration, or the cell that writes it; None if there is none."""
        if self.file is None or not all(parts):
            return None
        relative = PurePosixPath(*(part.replace("\0", "") for part in parts))
        for path in self.places(relative):
            try:
                text = read_bytes(path, SCRIPT if relative.suffix == ".py" else CONFIGURATION).decode("utf-8-sig")
            except (OSError, ValueError):
                continue
            return Source(str(path), text, path)
        written = self._written(relative.name)
        return None if written is None else Source(relative.name, written)

    def places(self, path: PurePosixPath) -> Iterator[Path]:
        """Yield where a file of the job may be: one of the container's paths is searched by its name."""
        if self.file is None:
            return
        inner = (
            [path] if not path.is_absolute() else [PurePosixPath(name, path.name) for name in ("", "src", "scripts")]
        )
        for folder in folders_from(self.file):
            yield from (folder / place for place in inner)

    def _written(self, name: str) -> str | None:
        if self.file is None or self.file.suffix != ".ipynb":
            return None
        try:
            cells = json_values(read_bytes(self.file, NOTEBOOK).decode())["cells"]
            texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # Variables that the notebook sets to one text.
        joined = "\n".join(texts)
        assigned = _ASSIGNED.findall(joined)
        single = {
            name: value for name, value in assigned if all(value == more for key, more in assigned if key == name)
        }
        exported = {name: text or single.get(source, "") for name, source, text in _EXPORTED.findall(joined)}
        environment = {name: value for name, value in exported.items() if value}
        for text in texts:
            match = _WRITES.match(text)
            written = [(match["path"], match["text"])] if match is not None else _printed(text, environment)
            for path, content in written:
                if PurePosixPath(path).name == name:
                    return content
        return None


def _printed(text: str, environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Files that a shell cell writes with ``cat > args.yaml <<EOF``: path and content, with known variables."""
    path, end = "", ""
    lines: list[str] = []
    for line in text.split("\n"):
        if end and line.strip() == end:
            content = "\n".join([*lines, ""])
            yield path, _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), content)
            end = ""
        elif end:
            lines.append(line)
        elif _PRINTS.fullmatch(line) and (last := DOCUMENT.search(line)) and (target := _TARGET.search(line)):
            path, end, lines = target[1], last[1], []


Dialect = Literal["python", "json", "yaml", "shell"]

_DEEPEST = 40
_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")
_FILES: dict[str, Dialect] = _FORMS["files"]
_TEMPLATE_ENDS = (".template", ".tmpl", ".tpl", ".j2", ".example", ".sample")
_CHECKED_HERE = "%%smp_check"
_TYPESET = str.maketrans("\u00a0\u2007\u202f\u201c\u201d\u2018\u2019", "   \"\"''")
"""No-break spaces and curly quotes."""
_ELLIPSIS = re.compile(r"^([ \t]*+)(?:\.\.\.|\u2026)[ \t]*+,?[ \t]*")
_MARK = "# ..."
_YAML_KEY = re.compile(r"^[A-Za-z_][\w.-]*:(\s|$)", re.MULTILINE)
"""A key at the start of a line, with a value or at its end."""
_ELIDED = "... replaces a part of the text"


@dataclass(frozen=True, slots=True)
class Document:
    source: Source
    dialect: Dialect
    pasted: str
    """The original text with its magics, from which the corrected text is made."""

    @property
    def elided(self) -> bool:
        return not self.source.cells and bool(self.source.skipped)

    @property
    def correctable(self) -> bool:
        """Whether the text can be corrected: a notebook has several cells."""
        return not self.source.cells


def with_text(document: Document, text: str) -> Document:
    """Return the same document with changed text; elided parts stay elided."""
    skipped: tuple[tuple[int, str], ...] = ()
    if document.elided:
        lines = enumerate(text.split("\n"), 1)
        skipped = tuple((number, _ELIDED) for number, line in lines if line.strip() == _MARK)
    return replace(document, source=Source(document.source.path, text, document.source.file, (), skipped), pasted=text)


def open_document(source: object) -> Document:
    if isinstance(source, Dictionary):
        try:
            plain = json.loads(json.dumps(dict(source), default=str))
            text = pprint.pformat(plain, sort_dicts=False, width=100)
        except Exception as error:  # noqa: BLE001 - the text of any object may fail
            raise AdvisorError(
                f"The dictionary contains an object that cannot be shown ({type(error).__name__}): pass plain data."
            ) from None
        return Document(Source("<dictionary>", text), "python", text)
    line = source.strip() if isinstance(source, str) and len(source) < 400 and not isinstance(source, Text) else ""
    is_path = "\n" not in line and line.lower().endswith(tuple(_FILES)) and not line.startswith("{")
    if isinstance(source, Path) or (isinstance(source, str) and is_path):
        return _of_file(user_path(source, AdvisorError))
    if not isinstance(source, str):
        raise AdvisorError(f"Pass the text of a cell, the path of a file or a dictionary, not {type(source).__name__}.")
    if len(source) > CONFIGURATION:
        raise AdvisorError(
            f"The text is longer than {CONFIGURATION:,} characters: paste only the cell with the estimator."
        )
    if not source.strip():
        raise AdvisorError("There is nothing to check: paste a cell, a dictionary, a request or a recipe.")
    return _of_text(source)


def _of_file(path: Path) -> Document:
    inner_name = path.with_suffix("") if path.suffix.lower() in _TEMPLATE_ENDS else path
    dialect = _FILES.get(inner_name.suffix.lower(), "python")
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
    if dialect is None and is_shell(text):
        dialect = "shell"
    if dialect is None and keyed and (_only_annotates(text) or not _is_python(text)):
        dialect = "yaml"
    if dialect is not None:
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
    """Return the text as Python, and its lines that are "..."; the original text if it cannot be read as Python.

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
    from smp_advisor.review.reading.module import parses

    return parses(read(f"{text}\n").text)


def _only_annotates(text: str) -> bool:
    """Return whether each statement is ``key: value``, which annotates a name in Python and is an entry in YAML."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(statement, ast.AnnAssign) and statement.value is None for statement in statements)


_MOST_NODES = 10_000
"""Values and keys of a recipe; an alias counts with all of its values."""
_LONGEST_NUMBER = 40
"""Digits: YAML has numbers of base 60, and reading a long one takes the square of its length."""
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_WRAPPERS = ("recipes", "training_config", "recipe")


def yaml_table(text: str) -> Mapping:
    try:
        loader = _Loader(text)
        try:
            nodes = [*iter(lambda: loader.get_node() if loader.check_node() else None, None)]
            tables = (node for node in nodes if isinstance(node, yaml.MappingNode))
            kinds = ((node, str(of.value)) for node in tables for key, of in node.value if key.value == "kind")
            # The first training job among other objects of its cluster.
            node = next((node for node, kind in kinds if kind.endswith("Job")), next(iter(nodes), None))
            loader.nodes = 0
            value = _value(node, loader, 0) if node is not None else None
        finally:
            loader.dispose()
    except AdvisorError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        # The last two: a value that is not of its tag, such as ``!!bool maybe`` or ``!!timestamp today``.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        if form := next((what for mark, what in _FORMS["templates"].items() if mark in text), ""):
            raise AdvisorError(
                f"The text is {form}, which is not read: paste the recipe or manifest of the job."
            ) from None
        raise AdvisorError(f"The recipe is not valid YAML{where} ({problem}): paste the complete file.") from None
    if not isinstance(value, Mapping):
        raise AdvisorError("The text is not a recipe: a recipe is a mapping with trainer and model.")
    return value


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Counts the nodes of a text while it is read, and again with its aliases followed."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.count()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise AdvisorError(f"The recipe is nested more than {_DEEPEST} levels deep: paste only one recipe.")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def count(self) -> None:
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise AdvisorError(
                f"The recipe has more than {_MOST_NODES:,} values, aliases included: paste only one recipe."
            )


def _value(node: yaml.Node, loader: _Loader, depth: int) -> Value:
    loader.count()
    if depth > _DEEPEST:
        raise yaml.YAMLError  # a cyclic alias, or a text that is slow on purpose
    if not str(node.tag).startswith("tag:yaml.org,2002:") or ":python" in str(node.tag):
        raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag} is not plain data", node.start_mark)
    span = Span(node.start_mark.index, node.end_mark.index)
    if isinstance(node, yaml.MappingNode):
        table = Mapping({}, span)
        for key, inner in node.value:
            value = _value(inner, loader, depth + 1)
            name = _scalar(key, loader) if isinstance(key, yaml.ScalarNode) else None
            value_span = Span(inner.start_mark.index, inner.end_mark.index)
            key_span = Span(key.start_mark.index, key.end_mark.index)
            table.entries[name] = Entry(value, Span(key_span.start, value_span.end), value_span, key_span)
        return table
    if isinstance(node, yaml.SequenceNode):
        return Collection([_value(inner, loader, depth + 1) for inner in node.value], span)
    return Constant(_scalar(node, loader), span)


def _scalar(node: yaml.ScalarNode, loader: _Loader) -> Any:
    if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
    return loader.construct_object(node)


def unwrapped(table: Mapping) -> Mapping:
    for name in _WRAPPERS:
        inner = table.get(name)
        if isinstance(inner, Mapping):
            return unwrapped(inner)
    return table


def resolve(recipe: Mapping) -> None:
    """Replace references such as ``${.sibling}`` and ``${recipes.trainer.precision}`` with their values."""

    def visit(table: Mapping, depth: int) -> None:
        for entry in table.entries.values():
            if isinstance(entry.value, Mapping) and depth < _DEEPEST:
                visit(entry.value, depth + 1)
            elif isinstance(entry.value, Constant) and isinstance(entry.value.value, str):
                entry.value = _referred(recipe, table, entry.value)

    visit(recipe, 0)


def _referred(recipe: Mapping, table: Mapping, value: Constant) -> Value:
    match = _REFERENCE.fullmatch(str(value.value).strip())
    if match is None:
        reference = _REFERENCE.search(str(value.value))
        return value if reference is None else Unknown(f"it refers to {reference.group(0)}")
    visited: set[str] = set()
    path, home = match.group(1), table
    while path not in visited:
        visited.add(path)
        owner: Value | None = home if path.startswith(".") else recipe
        parts = path.removeprefix(".").split(".")
        if not path.startswith(".") and parts[0] in _WRAPPERS:
            parts = parts[1:]
        for part in parts[:-1]:
            owner = owner.get(part) if isinstance(owner, Mapping) else None
        target = owner.get(parts[-1]) if isinstance(owner, Mapping) else None
        if not isinstance(target, Constant):
            break
        again = _REFERENCE.fullmatch(str(target.value).strip())
        if again is None:
            return Constant(target.value, value.span)
        path, home = again.group(1), owner if isinstance(owner, Mapping) else recipe
    return Unknown(f"it refers to {match.group(0)}")
