"""A parsed file: its text, its syntax tree and its names."""

from __future__ import annotations

import ast
import gc
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.errors import AdvisorError
from smp_advisor.review.reading.source import parsed
from smp_advisor.review.reading.values import Constant, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.source import Source


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

    def fresh(self, source: Source, *, entry: bool, directory: Path | None) -> Module:
        """Return the same file for another run: its names are new, its tree and the index of the tree are shared."""
        return Module(source, self.tree, entry, directory, _parents=self._parents, _by_type=self._by_type)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node around `node`."""
        self._index()
        return self._parents.get(node)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield `node` and the nodes around it, innermost first."""
        outer: ast.AST | None = node
        while outer is not None:
            yield outer
            outer = self.parent(outer)

    def all(self, kind: type[Node]) -> list[Node]:
        """Return all nodes of one type, outer nodes first."""
        self._index()
        return self._by_type.get(kind, [])

    def _index(self) -> None:
        if self._by_type:
            return
        pending: list[ast.AST] = [self.tree]
        for outer in pending:
            kind = type(outer)
            self._by_type.setdefault(kind, []).append(outer)
            for name in kind._fields:
                value = getattr(outer, name, None)
                for inner in value if isinstance(value, list) else (value,):
                    # The context of a name is shared by all names of the tree.
                    if isinstance(inner, ast.AST) and not isinstance(inner, ast.expr_context):
                        self._parents[inner] = outer
                        pending.append(inner)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the innermost statement around `node`."""
        return next((outer for outer in self.around(node) if isinstance(outer, ast.stmt)), None)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the source text of `node`."""
        place = self.source.span(node)
        return self.source.text[place.start : place.end]


def parse(source: Source, *, entry: bool = True, directory: Path | None = None) -> Module:
    """Parse, without compiling or running."""
    trees, key = _SHARED.get({}), (source.file.resolve() if source.file is not None else None, source.text)
    shared = trees.get(key)
    if shared is None:
        shared = Module(source, _tree(source), entry, directory)
        if sum(len(text) for _, text in trees) > _MOST_CHARACTERS:
            trees.clear()
        trees[key] = shared
    module = shared.fresh(source, entry=entry, directory=directory)
    module.scope.names["__name__"] = Constant("__main__" if entry else Path(source.path).stem)
    return module


@contextmanager
def shared_trees() -> Iterator[None]:
    """Parse each file once in the block, however many scripts import it. Nothing changes a tree."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


_SHARED: ContextVar[dict[tuple[Path | None, str], Module]] = ContextVar("shared trees")
_MOST_CHARACTERS = 4_000_000
"""Text whose trees are in memory together: a tree needs about 60 times the memory of its text."""


def _tree(source: Source) -> ast.Module:
    try:
        with _no_collection():
            return parsed(source.text, source.path)
    except SyntaxError as error:
        raise ScriptError(_explain(source, error)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = "it is nested too deeply" if not isinstance(error, ValueError) else "it holds null bytes"
        raise ScriptError(f"{source.path} cannot be checked: {reason}.") from None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the search for reference cycles: a tree has none, and half the time of parsing is spent in it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _explain(source: Source, error: SyntaxError) -> str:
    path, line = source.locate(error.lineno or 1)
    message = error.msg or "invalid syntax"
    if "Missing parentheses in call to" in message or "multiple exception types must be parenthesized" in message:
        return (
            f"{path}, line {line}: this is Python 2, which no container of these libraries runs:"
            " convert the script to Python 3 first."
        )
    return f"{path}, line {line}: {message}: the script must parse before it can be checked."


def parses(text: str) -> bool:
    """Return whether `text` is Python, silently."""
    try:
        parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
