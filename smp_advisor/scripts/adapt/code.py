"""Parse and generate small pieces of Python with LibCST."""

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
    "statements",
    "text_of",
    "walk",
]

LINE_LENGTH = 100
"""Maximum length of a generated line at module level, in characters."""

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


def text_of(node: cst.CSTNode) -> str:
    """Source code of a node."""
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
    """Parse an expression."""
    return cst.parse_expression(text)


def statements(text: str) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    """Parse statements; comments above the first one become its leading lines."""
    module = cst.parse_module(text.strip("\n") + "\n")
    body = list(module.body)
    if body and module.header:
        body[0] = body[0].with_changes(leading_lines=[*module.header, *body[0].leading_lines])
    return body


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and its descendants in source order, without whitespace and punctuation."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(children(current)))


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Child nodes without whitespace and punctuation, which `CSTNode.children` includes and which make it slow."""
    nodes: list[cst.CSTNode] = []
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            nodes.append(value)
        elif isinstance(value, list | tuple):
            nodes.extend(item for item in value if isinstance(item, cst.CSTNode))
    return nodes


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if not field.name.startswith("whitespace") and field.name not in _TRIVIA
    )


def names_in(node: cst.CSTNode) -> list[str]:
    """Names read in an expression, in source order, without attribute and keyword names."""
    names: list[str] = []
    stack: list[cst.CSTNode] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, cst.Name):
            names.append(current.value)
        elif isinstance(current, (cst.Attribute, cst.Arg)):
            stack.append(current.value)
        else:
            stack.extend(reversed(children(current)))
    return names


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument passed by this keyword."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def positional(call: cst.Call, index: int) -> cst.Arg | None:
    """The argument passed at this position; None after a ``*argument``, because its length is unknown."""
    for number, arg in enumerate(call.args):
        if arg.keyword is not None or arg.star:
            return None
        if number == index:
            return arg
    return None


def call_text(function: str, arguments: Iterable[str], *, width: int = LINE_LENGTH, before: str = "") -> str:
    """Source of a call: on one line if it fits after `before`, otherwise one argument per line."""
    arguments = list(arguments)
    line = f"{function}({', '.join(arguments)})"
    if len(before) + len(line) <= width:
        return line
    return function + "(\n" + "".join(f"    {_indented(argument)},\n" for argument in arguments) + ")"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
