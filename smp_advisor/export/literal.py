"""Values as Python source, laid out as black lays them out; text as a harmless comment."""

from __future__ import annotations

import math
from collections.abc import Mapping

from smp_advisor.errors import ExportError

__all__ = ["Comment", "comment", "literal", "text_literal"]

_COMMENT_LENGTH = 60


class Comment(str):
    """Text that may stand in a comment: printable, one line, no directive for a formatter or linter."""

    __slots__ = ()


def comment(text: str) -> Comment:
    """Make any text fit for a comment.

    A line break would turn the rest of a comment into code, and ``#`` could start a directive (``# fmt: skip``).
    """
    printable = "".join(character if character.isprintable() and character != "#" else " " for character in text)
    words = " ".join(printable.split())
    return Comment(words if len(words) <= _COMMENT_LENGTH else words[: _COMMENT_LENGTH - 1].rstrip() + "…")


def text_literal(text: str) -> str:
    """A string literal as black leaves it: double quotes unless single ones need fewer escapes.

    Examples
    --------
    >>> print(text_literal("it's"), text_literal('say "x"'))
    "it's" 'say "x"'
    """
    quote = '"' if text.count('"') <= text.count("'") else "'"
    escaped = (
        "\\" + character if character == quote else character if character in "'\"" else repr(character)[1:-1]
        for character in text
    )
    return quote + "".join(escaped) + quote


def literal(value: object, indent: int = 0) -> str:
    """Python source of plain data: one entry a line, closed by a trailing comma, which black keeps whatever its length.

    Parameters
    ----------
    value
        None, a boolean, number or string, or a dictionary (with string keys), list or tuple of these.
    indent
        Columns by which the line that holds the value is indented.
    """
    if isinstance(value, str):
        return text_literal(value)
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value).replace("e+", "e")
    inner = " " * (indent + 4)
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        entries = [f"{inner}{text_literal(str(key))}: {literal(entry, indent + 4)},\n" for key, entry in value.items()]
        return "{\n" + "".join(entries) + " " * indent + "}"
    if isinstance(value, list | tuple):
        if not value:
            return "[]"
        entries = [f"{inner}{literal(entry, indent + 4)},\n" for entry in value]
        return "[\n" + "".join(entries) + " " * indent + "]"
    raise ExportError(
        f"{value!r} cannot be written into a cell: use text, finite numbers, True, False, None, lists and dictionaries."
    )
