"""Templates of emitted code: Python files whose marked lines and values depend on the plan."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from smp_advisor.export.literal import Comment, literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["render"]

_DIRECTIVE = re.compile(r"\s*#: (if|elif|else|end)\b ?(.*)")
_INCLUDE = re.compile(r"#: include (\S+)")
_VALUE = re.compile(r"\{\{ (\w+) \}\}")


@cache
def _lines(name: str) -> tuple[str, ...]:
    text = (files("smp_advisor.export") / "templates" / name).read_text(encoding="utf-8")
    lines: list[str] = []
    for line in text.splitlines():
        included = _INCLUDE.fullmatch(line)
        lines += _lines(included[1]) if included else [line]
    return tuple(lines)


def render(name: str, *, values: Mapping[str, object], flags: Mapping[str, bool]) -> str:
    """Write out a template.

    Lines between ``#: if <flags>`` (``#: elif``, ``#: else``) and ``#: end`` stay where every flag named holds (``not``
    negates one, ``and`` joins them); ``#: include <template>`` brings in another. ``{{ name }}`` becomes the value's
    literal, or itself where it is a `Comment`. Values are put in once, in one pass: braces in a user's text mean
    nothing.
    """
    kept: list[str] = []
    # For each open block: does the current branch hold, has one held.
    blocks: list[tuple[bool, bool]] = []
    for line in _lines(name):
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            if all(holds for holds, _ in blocks):
                kept.append(_filled(line, values))
            continue
        word, condition = directive.groups()
        if word == "if":
            holds = _holds(condition, flags)
            blocks.append((holds, holds))
        elif word == "end":
            blocks.pop()
        else:
            _, held = blocks.pop()
            holds = not held and (word == "else" or _holds(condition, flags))
            blocks.append((holds, held or holds))
    return "\n".join(kept) + "\n"


def _holds(condition: str, flags: Mapping[str, bool]) -> bool:
    terms = (term.split() for term in condition.split(" and "))
    return all(flags[term[-1]] is (term[0] != "not") for term in terms)


def _filled(line: str, values: Mapping[str, object]) -> str:
    indent = len(line) - len(line.lstrip())

    def source(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value if isinstance(value, Comment) else literal(value, indent)

    return _VALUE.sub(source, line)
