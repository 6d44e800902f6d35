"""Patterns of messages, searched without regard to case in many lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True)
class Pattern:
    """A regular expression for text in lower case, and a part of it without which it does not match."""

    search: re.Pattern[str]
    literal: str

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Return the pattern of a text in any case."""
        lowered = re.sub(r"(\\.|\(\?P<\w+>)|[A-Z]", lambda match: match[1] or match[0].lower(), text)
        return cls(re.compile(lowered), literal_of(lowered))


def literal_of(pattern: str) -> str:
    """Return the longest text that every match contains: a run of plain characters outside groups."""
    runs, depth, place = [""], 0, 0
    while place < len(pattern):
        part: str = re.compile(r"\\.|\[\^?\]?[^]]*\]|\{[^}]*\}|.").match(pattern, place)[0]  # type: ignore[index]
        place += len(part)
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            return ""
        plain = part[-1] if re.fullmatch(r"\\\W|[^\\.^$|+?*()[{]", part) else ""
        if depth or not plain or re.match(r"[?*]|\{0", pattern[place:]):
            runs.append("")
        else:
            runs[-1] += plain
    return max(runs, key=len)
