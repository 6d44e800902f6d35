"""Values as Python source in the format of black, and text that is safe in a comment."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from smp_advisor.errors import ExportError

__all__ = ["Call", "Comment", "Expression", "comment", "comment_lines", "import_line", "literal", "text_literal"]

_COMMENT_LENGTH = 60
_LINE_LENGTH = 88
"""Line length of black, in columns."""


class Comment(str):
    """Text that is safe in a comment: printable, on one line, without directives for formatters or linters."""

    __slots__ = ()


class Expression(str):
    """Source code used instead of a value, such as a variable of the cell; never text from a user."""

    __slots__ = ()


@dataclass(frozen=True)
class Call:
    """A call with keyword arguments."""

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
    return Comment("\n# ".join(textwrap.wrap(_words(text), _LINE_LENGTH, break_on_hyphens=False)))


def _words(text: str) -> str:
    printable = "".join(character if character.isprintable() and character != "#" else " " for character in text)
    return " ".join(printable.split())


def import_line(module: str, names: Iterable[str]) -> str:
    """``from module import names``, sorted, and wrapped in the format of black.

    Examples
    --------
    >>> import_line("smp_advisor", ["advise", "Plan"])
    'from smp_advisor import Plan, advise'
    """
    ordered = sorted(names, key=lambda name: (name.islower(), name))
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= _LINE_LENGTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in ordered) + ")"


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


def literal(value: object, indent: int = 0) -> str:
    """Python source of plain data, one entry per line with a trailing comma, which black does not reformat.

    Parameters
    ----------
    value
        None, a boolean, number or string, a `Call` or `Expression`, or a dictionary (with string keys), list or tuple
        of these.
    indent
        Indentation of the line that contains the value, in columns.
    """
    if isinstance(value, Expression):
        return str(value)
    if isinstance(value, str):
        return text_literal(value)
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value).replace("e+", "e")
    if isinstance(value, Call | Mapping | list | tuple):
        return _nested(value, indent)
    raise ExportError(
        f"{value!r} cannot be written into a cell: use strings, finite numbers, True, False, None, lists and"
        " dictionaries."
    )


def _nested(value: Call | Mapping[str, object] | list[object] | tuple[object, ...], indent: int) -> str:
    if isinstance(value, Call):
        opening, closing = f"{value.name}(", ")"
        entries = [f"{name}={literal(entry, indent + 4)}" for name, entry in value.arguments.items()]
    elif isinstance(value, Mapping):
        opening, closing = "{", "}"
        entries = [f"{text_literal(str(key))}: {literal(entry, indent + 4)}" for key, entry in value.items()]
    else:
        opening, closing = "[", "]"
        entries = [literal(entry, indent + 4) for entry in value]
    if not entries:
        return opening + closing
    inner = " " * (indent + 4)
    return opening + "\n" + "".join(f"{inner}{entry},\n" for entry in entries) + " " * indent + closing
