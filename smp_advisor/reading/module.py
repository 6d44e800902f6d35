"""A parsed file of the script."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.scope import Scope
from smp_advisor.reading.values import Constant

if TYPE_CHECKING:
    from smp_advisor.reading.source import Source

__all__ = ["Module", "ScriptError", "parse"]


Node = TypeVar("Node", bound=ast.AST)


class ScriptError(AdvisorError):
    """A script that cannot be read: missing, not text, or not Python."""


@dataclass(slots=True, eq=False)
class Module:
    """One file or cell: text, syntax tree and names."""

    source: Source
    tree: ast.Module
    entry: bool
    """Whether this is the file that is checked, as opposed to one that it imports."""
    directory: Path | None
    """Folder of the modules that it can import."""
    scope: Scope = field(default_factory=Scope)
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _by_type: dict[type[ast.AST], list[Any]] = field(default_factory=dict)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around `node`."""
        self._index()
        return self._parents.get(node)

    def all(self, kind: type[Node]) -> list[Node]:
        """All nodes of one type, outer nodes first."""
        self._index()
        return self._by_type.get(kind, [])

    def _index(self) -> None:
        """Walk the tree once, on first use."""
        if self._by_type:
            return
        pending: list[ast.AST] = [self.tree]
        for outer in pending:
            self._by_type.setdefault(type(outer), []).append(outer)
            for inner in ast.iter_child_nodes(outer):
                if not isinstance(inner, ast.expr_context):  # shared by all names of the tree
                    self._parents[inner] = outer
                    pending.append(inner)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement around `node`."""
        around: ast.AST | None = node
        while around is not None and not isinstance(around, ast.stmt):
            around = self.parent(around)
        return around

    def text(self, node: ast.expr | ast.stmt) -> str:
        """The source text of `node`."""
        place = self.source.span(node)
        return self.source.text[place.start : place.end]


def parse(source: Source, *, entry: bool = True, directory: Path | None = None) -> Module:
    """Parse, without compiling or running.

    Raises
    ------
    ScriptError
        If the text is not Python 3.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the script are not reported
            tree = ast.parse(source.text, filename=source.path)
    except SyntaxError as error:
        raise ScriptError(_explain(source, error)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = "it is nested too deeply" if not isinstance(error, ValueError) else "it holds null bytes"
        raise ScriptError(f"{source.path} cannot be checked: {reason}.") from None
    module = Module(source, tree, entry, directory)
    module.scope.names["__name__"] = Constant("__main__" if entry else Path(source.path).stem)
    return module


def _explain(source: Source, error: SyntaxError) -> str:
    path, line = source.locate(error.lineno or 1)
    message = error.msg or "invalid syntax"
    if "Missing parentheses in call to" in message or "multiple exception types must be parenthesized" in message:
        return (
            f"{path}, line {line}: this is Python 2, which no container of these libraries runs:"
            " convert the script to Python 3 first."
        )
    return f"{path}, line {line}: {message}: the script must parse before it can be checked."
