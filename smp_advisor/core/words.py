"""Words that leave: the one door to terminals and to Markdown."""

from __future__ import annotations

import re
from itertools import groupby

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys: controls without tab and line feed, and directions of writing."""
_READ_BY_MARKDOWN = re.compile(r"[\\`*_\[\]<>#|&~]|:(?=//)|(?<=www)\.|@", re.IGNORECASE)


def plain(text: str) -> str:
    """Return text of others as a terminal may get it: controls as escapes, which JSON and Python read, too."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str) -> str:
    """Return text of others that stays in its line."""
    return plain(text).replace("\n", "\\n").replace("\t", " ")


def markdown(text: str) -> str:
    """Return text without markup, tags or links for a reader of Markdown."""
    return _READ_BY_MARKDOWN.sub(lambda match: f"\\{match[0]}", " ".join(plain(text).split()))


def fenced(text: str, language: str = "") -> str:
    """Return a text as a block of Markdown that its own back-quotes do not end."""
    longest = max((len(list(run)) for char, run in groupby(text) if char == "`"), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{plain(text)}\n{fence}"
