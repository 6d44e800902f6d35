"""Words that leave: the one door to terminals and to HTML."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that a terminal obeys or a reader does not see: controls without tab and line feed, directions of writing,
and those without a width that no language needs."""


def plain(text: str) -> str:
    """Return text of others as a terminal may get it: controls as escapes, which JSON and Python read, too."""
    return _CONTROLS.sub(lambda match: re.sub("....", r"\\u\g<0>", match[0].encode("utf-16-be").hex()), text)


def escape(text: str) -> str:
    """Return text as HTML may have it, in an element or an attribute."""
    return html.escape(plain(text))


class Sentence(str):
    """A text that a notebook shows without quotes when it is the value of a cell."""

    __slots__ = ()
    __repr__ = str.__str__


def one_line(text: str) -> str:
    """Return text of others that stays in its line."""
    return plain(text).replace("\n", "\\n").replace("\t", " ")


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Count with its noun: ``1 microbatch``, ``4 microbatches``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return the first of some names in one line, and the number of the others: ``a, b and 3 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(one_line, names[:most])) + more
