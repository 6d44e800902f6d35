"""Python with LibCST: parse and generate small pieces, and collect edits of a module to apply them in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_LINE_LENGTH = 88
"""Maximum length of a generated call, in characters."""

_TRIVIA = frozenset({
    "comma", "default_indent", "dot", "encoding", "equal", "footer", "header", "lbrace", "lbracket",
    "leading_lines", "lines_after_decorators", "lpar", "newline", "rbrace", "rbracket", "rpar", "semicolon",
    "trailing_whitespace",
})  # fmt: skip
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


expression = cst.parse_expression


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
        elif not isinstance(current, cst.Import | cst.ImportFrom):
            stack.extend(reversed(children(current)))
    return names


_MOVES = ("to", "cuda")


def without_moves(value: Any) -> Any:
    """The value without device moves: ``Net()`` for ``Net().to(device)``."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _MOVES:
        value = value.func.value
    return value


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


def call_text(function: str, arguments: Iterable[str]) -> str:
    """Source of a call: on one line if it is short, otherwise one argument per line."""
    line = f"{function}({', '.join(arguments := list(arguments))})"
    inner = (argument.replace("\n", "\n    ") for argument in arguments)
    return line if len(line) <= _LINE_LENGTH else f"{function}(\n" + "".join(f"    {text},\n" for text in inner) + ")"


Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Change = Callable[[Any], Any]
"""Maps a node to its replacement: a node or a sequence of nodes."""


class Edits:
    """Replacements, removals and insertions, keyed by nodes of the module passed to `apply`."""

    def __init__(self) -> None:
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._removed: set[cst.CSTNode] = set()
        self._before: dict[cst.CSTNode, list[Statement]] = {}
        self._after: dict[cst.CSTNode, list[Statement]] = {}

    def __bool__(self) -> bool:
        return bool(self._changes or self._removed or self._before or self._after)

    def change(self, node: cst.CSTNode, how: Change) -> None:
        """Replace a node by `how(node)`; the node passed to `how` already includes the edits of its children."""
        self._changes.setdefault(node, []).append(how)

    def replace(self, node: cst.CSTNode, new: cst.CSTNode) -> None:
        """Replace a node by `new`."""
        self.change(node, lambda _: new)

    def remove(self, statement: cst.CSTNode) -> None:
        """Remove a statement; an empty block gets ``pass``."""
        self._removed.add(statement)

    def is_changed(self, node: cst.CSTNode) -> bool:
        """Whether a change of the node is collected."""
        return node in self._changes

    def insert_before(self, statement: cst.CSTNode, new: Sequence[Statement]) -> None:
        """Insert statements before another."""
        self._before.setdefault(statement, []).extend(new)

    def insert_after(self, statement: cst.CSTNode, new: Sequence[Statement]) -> None:
        """Insert statements after another, and after those inserted there earlier."""
        self._after.setdefault(statement, []).extend(new)

    def apply(self, module: cst.Module) -> cst.Module:
        """The module with all edits applied."""
        return module.visit(_Transformer(self)) if self else module

    def leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> Any:
        """Replacement of a node; `updated` is the node with its children edited."""
        for how in self._changes.get(original, ()):
            updated = how(updated)
        removed = original in self._removed
        before, after = self._before.get(original, []), self._after.get(original, [])
        if not before and not after:
            return cst.RemoveFromParent() if removed else updated
        return cst.FlattenSentinel([*before, *([] if removed else [updated]), *after])


class _Transformer(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        result = self._edits.leave(original_node, updated_node)
        if isinstance(result, cst.IndentedBlock) and not result.body:
            return result.with_changes(body=[cst.SimpleStatementLine(body=[cst.Pass()])])
        return result
