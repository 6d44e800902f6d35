"""Templates of generated code: conditional lines, values as Python source in the format of black, gathered imports."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from smp_advisor.core.files import sentence
from smp_advisor.errors import ExportError

_COMMENT_LENGTH = 60
_TEXT_LENGTH, _LINE_LENGTH = 88, 120
"""Of wrapped text and of generated code, in columns."""


class Comment(str):
    """Text that is safe in a comment: printable, on one line, without directives for formatters or linters."""

    __slots__ = ()


class Expression(str):
    """Source code used instead of a value, such as a variable of the cell; never text from a user."""

    __slots__ = ()


@dataclass(frozen=True)
class Call:
    """A call with keyword arguments, of which those that are None are left out."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)


def comment(text: str) -> Comment:
    """Make any text safe for a comment, shortened to one line.

    A line break would turn the rest of a comment into code, and ``#`` could start a directive (``# fmt: skip``).
    """
    words = _words(text)
    return Comment(words if len(words) <= _COMMENT_LENGTH else words[: _COMMENT_LENGTH - 1].rstrip() + "…")


def comment_lines(text: str) -> Comment:
    """Make any text safe for a comment, wrapped over several lines; the first has no ``#``."""
    return Comment("\n# ".join(textwrap.wrap(_words(text), _TEXT_LENGTH, break_on_hyphens=False)))


def comments(sentences: Iterable[str]) -> Comment:
    """Comment lines of Python, Bash or YAML from any texts, of which empty ones are left out."""
    return Comment("\n".join(f"# {comment_lines(sentence)}" for sentence in sentences if sentence))


def _words(text: str) -> str:
    printable = "".join(character if character.isprintable() and character != "#" else " " for character in text)
    return " ".join(printable.split())


def text_literal(text: str) -> str:
    """String literal in the format of black: double quotes, unless single quotes need fewer escapes.

    Examples
    --------
    >>> print(text_literal("it's"), text_literal('the "x"'))
    "it's" 'the "x"'
    """
    quote = '"' if text.count('"') <= text.count("'") else "'"
    escaped = (
        "\\" + character if character == quote else character if character in "'\"" else repr(character)[1:-1]
        for character in text
    )
    return quote + "".join(escaped) + quote


def text_block(text: str) -> str:
    """String literal of the lines of a text, as they are read."""
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""\\\n{escaped}"""'


def literal(value: object, indent: int = 0) -> str:
    """Python source of plain data, one entry per line with a trailing comma, which black does not reformat."""
    if isinstance(value, Expression):
        return str(value)
    if isinstance(value, str):
        return text_literal(value)
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float) and not math.isnan(value):
        return f'float("{value}")' if math.isinf(value) else repr(value).replace("e+", "e")
    if isinstance(value, Call | Mapping | list | tuple):
        return _nested(value, indent)
    raise ExportError(sentence("export", "not_literal", value=value))


def _nested(value: Call | Mapping[str, object] | list[object] | tuple[object, ...], indent: int) -> str:
    if isinstance(value, Call):
        opening, closing = f"{value.name}(", ")"
        arguments = {name: entry for name, entry in value.arguments.items() if entry is not None}
        entries = [f"{name}={literal(entry, indent + 4)}" for name, entry in arguments.items()]
    elif isinstance(value, Mapping):
        opening, closing = "{", "}"
        entries = [f"{text_literal(str(key))}: {literal(entry, indent + 4)}" for key, entry in value.items()]
    else:
        opening, closing = "[", "]"
        entries = [_row(entry, indent + 4) for entry in value]
    if not entries:
        return opening + closing
    inner = " " * (indent + 4)
    return opening + "\n" + "".join(f"{inner}{entry},\n" for entry in entries) + " " * indent + closing


def _row(entry: object, indent: int) -> str:
    """Entry of a list; a short dictionary on one line: ``{"Name": "train:loss", "Regex": "loss ([0-9.]+)"}``."""
    if isinstance(entry, Mapping) and all(isinstance(part, str | int | float | None) for part in entry.values()):
        row = "{" + ", ".join(f"{text_literal(str(key))}: {literal(part)}" for key, part in entry.items()) + "}"
        if indent + len(row) < _LINE_LENGTH:
            return row
    return literal(entry, indent)


_EMPTY_LINES = re.compile(r"\n{4,}")


def gathered(source: str) -> str:
    """Leave out the names of imports at the top level of `source` that it does not use, or has imported before.

    Templates import everything that one of their variants uses, a statement per line. More than two empty lines in a
    row, which are between the parts, become two.
    """
    tree, lines = ast.parse(source), source.splitlines(keepends=True)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = {alias.asname or alias.name.split(".")[0]: alias for alias in node.names}
            names = [alias for name, alias in bound.items() if name in used]
            used -= bound.keys()
            node.names = sorted(names, key=lambda alias: (alias.name.islower(), alias.name))
            lines[node.lineno - 1] = f"{ast.unparse(node)}\n" if names else ""
    return _EMPTY_LINES.sub("\n\n\n", "".join(lines))


_DIRECTIVE = re.compile(r"\s*#: (if|elif|else|end)\b ?(.*)")
_INCLUDE = re.compile(r"#: (include|part) (\S+)")
_VALUE = re.compile(r"\{\{ (\w+) \}\}")


@cache
def _lines(name: str) -> tuple[str, ...]:
    text = (files("smp_advisor.export") / "templates" / name).read_text(encoding="utf-8")
    lines: list[str] = []
    for line in text.splitlines():
        included = _INCLUDE.fullmatch(line)
        if included and included[1] == "part":
            lines += ["", ""]
        lines += _lines(included[2]) if included else [line]
    return tuple(lines)


def render(name: str, /, **values: object) -> str:
    """Render a template.

    Lines between ``#: if <names>`` (``#: elif``, ``#: else``) and ``#: end`` are included if the values are true or not
    empty (``not`` negates a value, ``and`` and ``or`` join them), and so is a line that ends with ``#: if <names>``.
    ``#: include <template>`` includes another template, ``#: part <template>`` after two empty lines. ``{{ name }}`` is
    replaced by the literal of the value, or by the text itself if it is a `Comment`. Values are inserted in one pass,
    so braces in a text have no effect.
    """
    lines: list[str] = []
    # For each open block: whether the current branch is true, and whether any branch was true.
    blocks: list[tuple[bool, bool]] = []
    for line in _lines(name):
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            text, _, condition = line.partition("  #: if ")
            if all(holds for holds, _ in blocks) and (not condition or _holds(condition, values)):
                lines.append(_filled(text, values))
            continue
        word, condition = directive.groups()
        any_held = word != "if" and blocks.pop()[1]
        if word != "end":
            holds = not any_held and all(outer for outer, _ in blocks)
            holds = holds and (word == "else" or _holds(condition, values))
            blocks.append((holds, any_held or holds))
    return "\n".join(lines) + "\n"


def _holds(condition: str, values: Mapping[str, object]) -> bool:
    return any(
        all(bool(values[name.removeprefix("not ")]) is not name.startswith("not ") for name in terms.split(" and "))
        for terms in condition.split(" or ")
    )


def _filled(line: str, values: Mapping[str, object]) -> str:
    indent = len(line) - len(line.lstrip())

    def source(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value if isinstance(value, Comment) else literal(value, indent)

    return _VALUE.sub(source, line)
