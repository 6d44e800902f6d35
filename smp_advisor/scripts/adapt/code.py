"""Reading and writing small pieces of Python with LibCST."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "LINE_LENGTH",
    "call_text",
    "children",
    "dotted",
    "expression",
    "keyword",
    "names_in",
    "positional",
    "spelled",
    "statements",
    "walk",
]

LINE_LENGTH = 100
"""Longest line that generated code takes at the outermost level."""

_TRIVIA = frozenset(
    {
        "comma",
        "default_indent",
        "dot",
        "encoding",
        "equal",
        "footer",
        "header",
        "lbrace",
        "lbracket",
        "leading_lines",
        "lines_after_decorators",
        "lpar",
        "newline",
        "rbrace",
        "rbracket",
        "rpar",
        "semicolon",
        "trailing_whitespace",
    }
)
_EMPTY = cst.Module(body=[])


def spelled(node: cst.CSTNode) -> str:
    """The node's own text."""
    return _EMPTY.code_for_node(node)


def dotted(node: cst.CSTNode) -> str | None:
    """``a.b.c`` for a name or a chain of attributes, None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return None if base is None else f"{base}.{node.attr.value}"
    return None


def expression(text: str) -> cst.BaseExpression:
    """Parsed expression."""
    return cst.parse_expression(text)


def statements(text: str) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    """Parsed statements; comments above the first are its leading lines."""
    module = cst.parse_module(text.strip("\n") + "\n")
    body = list(module.body)
    if body and module.header:
        body[0] = body[0].with_changes(leading_lines=[*module.header, *body[0].leading_lines])
    return body


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything below it, in the order of the text; white space and punctuation left out."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(children(current)))


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """What the node is made of, white space and punctuation left out (`CSTNode.children` visits those too, slowly)."""
    found: list[cst.CSTNode] = []
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(item for item in value if isinstance(item, cst.CSTNode))
    return found


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if not field.name.startswith("whitespace") and field.name not in _TRIVIA
    )


def names_in(node: cst.CSTNode) -> list[str]:
    """Names read in an expression, in order; attribute and keyword names are none."""
    found: list[str] = []
    stack: list[cst.CSTNode] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, cst.Name):
            found.append(current.value)
        elif isinstance(current, (cst.Attribute, cst.Arg)):
            stack.append(current.value)
        else:
            stack.extend(reversed(children(current)))
    return found


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """Argument given by this keyword."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def positional(call: cst.Call, index: int) -> cst.Arg | None:
    """Argument given at this position; None after a ``*argument``, whose length nobody knows."""
    for number, arg in enumerate(call.args):
        if arg.keyword is not None or arg.star:
            return None
        if number == index:
            return arg
    return None


def call_text(function: str, arguments: Iterable[str], *, width: int = LINE_LENGTH, before: str = "") -> str:
    """A call on one line where it fits behind `before`, else one argument a line."""
    arguments = list(arguments)
    line = f"{function}({', '.join(arguments)})"
    if len(before) + len(line) <= width:
        return line
    return function + "(\n" + "".join(f"    {_indented(argument)},\n" for argument in arguments) + ")"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
