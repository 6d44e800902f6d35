"""``# smp: ignore[SMP109] reason``: comments that suppress findings."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass

__all__ = ["Suppression", "suppressions"]

_COMMENT = re.compile(r"#\s*smp:\s*ignore\[\s*(?P<ids>[A-Za-z0-9,\s]*)\]\s*(?P<reason>.*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Suppression:
    """Findings that a comment suppresses on its line, or on the next line of code if it is on its own line."""

    ids: tuple[str, ...]
    reason: str
    comment_line: int
    line: int


def suppressions(text: str) -> list[Suppression]:
    """The comments of `text` that suppress findings."""
    if "smp:" not in text:
        return []
    lines = text.split("\n")
    comments = []
    for number, column, comment in _comments(text):
        match = _COMMENT.search(comment)
        if match is None:
            continue
        ids = tuple(part.strip().upper() for part in match["ids"].split(",") if part.strip())
        alone = not lines[number - 1][:column].strip()
        line = _next_code(lines, number) if alone else number
        comments.append(Suppression(ids, match["reason"].strip(" -:\r"), number, line))
    return comments


def _comments(text: str) -> list[tuple[int, int, str]]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return []
    return [(*token.start, token.string) for token in tokens if token.type == tokenize.COMMENT]


def _next_code(lines: list[str], number: int) -> int:
    for later in range(number, len(lines)):
        stripped = lines[later].strip()
        if stripped and not stripped.startswith("#"):
            return later + 1
    return number
