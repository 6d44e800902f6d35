"""Templates of generated code: Python files with conditional lines and values."""

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
    """Render a template.

    Lines between ``#: if <flags>`` (``#: elif``, ``#: else``) and ``#: end`` are included if all flags are true
    (``not`` negates a flag, ``and`` joins flags). ``#: include <template>`` includes another template. ``{{ name }}``
    is replaced by the literal of the value, or by the text itself if it is a `Comment`. Values are inserted in one
    pass, so braces in the text of a user have no effect.
    """
    lines: list[str] = []
    # For each open block: whether the current branch is true, and whether any branch was true.
    blocks: list[tuple[bool, bool]] = []
    for line in _lines(name):
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            if all(holds for holds, _ in blocks):
                lines.append(_filled(line, values))
            continue
        word, condition = directive.groups()
        if word == "if":
            holds = _holds(condition, flags)
            blocks.append((holds, holds))
        elif word == "end":
            blocks.pop()
        else:
            _, any_held = blocks.pop()
            holds = not any_held and (word == "else" or _holds(condition, flags))
            blocks.append((holds, any_held or holds))
    return "\n".join(lines) + "\n"


def _holds(condition: str, flags: Mapping[str, bool]) -> bool:
    terms = (term.split() for term in condition.split(" and "))
    return all(flags[term[-1]] is (term[0] != "not") for term in terms)


def _filled(line: str, values: Mapping[str, object]) -> str:
    indent = len(line) - len(line.lstrip())

    def source(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value if isinstance(value, Comment) else literal(value, indent)

    return _VALUE.sub(source, line)
