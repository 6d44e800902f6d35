"""A parsed file, and changes at the places of its syntax tree; the rest of the text stays the same."""

from __future__ import annotations

import ast
import bisect
import difflib
import gc
import itertools
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.errors import AdvisorError
from smp_advisor.review.reading.source import Edit, applied, cell_changes, cell_texts, changed_notebook, parsed
from smp_advisor.review.reading.values import Constant, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        """The same file for another run: its names are new, its tree and the index of the tree are shared."""
        return Module(source, self.tree, entry, directory, _parents=self._parents, _by_type=self._by_type)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around `node`."""
        self._index()
        return self._parents.get(node)

    def all(self, kind: type[Node]) -> list[Node]:
        """All nodes of one type, outer nodes first."""
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


_AROUND = 12
"""Lines around a change that are compared for a diff: more than the three that it shows."""


def replace(module: Module, node: ast.expr, text: str) -> Edit:
    """Replace `node` with `text`."""
    place = module.source.span(node)
    return Edit(place.start, place.end, text)


def wrap(module: Module, node: ast.expr, before: str, after: str) -> tuple[Edit, Edit]:
    """Put text on both sides of `node`."""
    place = module.source.span(node)
    return Edit(place.start, place.start, before), Edit(place.end, place.end, after)


def add_keyword(module: Module, call: ast.Call, name: str, text: str) -> Edit:
    """Set the keyword argument `name` of a call to the expression `text`."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return replace(module, keyword.value, text)
    end = module.source.span(call).end
    arguments: list[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments:
        return Edit(end - 1, end - 1, f"{name}={text}")
    last = max(module.source.span(argument).end for argument in arguments)
    if len(arguments) == 1 and isinstance(arguments[0], ast.GeneratorExp) and last == end:
        return Edit(last, last, "")  # f(x for x in y): no place without brackets of its own
    ending = module.source.text[last : end - 1]
    tokens = "\n".join(line.partition("#")[0].ljust(len(line)) for line in ending.split("\n"))  # comments blanked
    first = min(arguments, key=lambda argument: module.source.span(argument).start)
    own_lines = first.lineno != call.lineno and "\n" in ending
    comma = tokens.find(",")
    # Brackets around the last argument close before the comma.
    closing = last + (comma if comma >= 0 else len(tokens.rstrip()))
    if own_lines:
        indent = _indent(module.source, max(arguments, key=lambda argument: argument.lineno).lineno)
        if comma >= 0:
            return Edit(closing + 1, closing + 1, f"\n{indent}{name}={text},")
        return Edit(closing, closing, f",\n{indent}{name}={text}")
    if comma >= 0:
        return Edit(closing + 1, closing + 1, f" {name}={text}")
    return Edit(closing, closing, f", {name}={text}")


def before_statement(module: Module, statement: ast.stmt, text: str) -> Edit | None:
    """A line above `statement` with the same indent; None if the statement shares its line."""
    source = module.source
    first = statement
    line = _top(first)
    if source.line(line)[: source.column(line, first.col_offset)].strip() and line == first.lineno:
        return None
    start = _offset(source, line, 0)
    return Edit(start, start, f"{_indent(source, line)}{text}{_newline(source)}")


def after_statement(module: Module, statement: ast.stmt, text: str) -> Edit | None:
    """A line below `statement`; None if another statement follows on its last line."""
    source = module.source
    if source.line(statement.lineno)[: source.column(statement.lineno, statement.col_offset)].strip():
        return None
    last = statement.end_lineno or statement.lineno
    following = source.line(last)[source.column(last, statement.end_col_offset or 0) :].strip()
    if following and not following.startswith("#"):
        return None
    end = _offset(source, last, 0) + len(source.line(last))
    return Edit(end, end, f"{_newline(source)}{_indent(source, statement.lineno)}{text}")


def complete(edits: Iterable[Edit | None]) -> list[Edit]:
    """The changes in order; empty if one has no place or two overlap."""
    changes = list(edits)
    placed = sorted((change for change in changes if change is not None), key=lambda change: (change.start, change.end))
    overlap = any(first.end > second.start for first, second in itertools.pairwise(placed))
    return [] if overlap or len(placed) < len(changes) else placed


def parses(text: str) -> bool:
    """Whether `text` is Python, silently."""
    try:
        parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def changed(module: Module, edits: list[Edit]) -> str | None:
    """The text of the file after `edits` (JSON for a notebook); None if that is impossible or would not parse."""
    source = module.source
    text = applied(source.text, edits)
    if text == source.text or not _still_parses(module, edits):
        return None
    if not source.cells:
        return text
    cells = cell_changes(source, edits)
    return changed_notebook(source, cells) if cells else None


def _still_parses(module: Module, edits: list[Edit]) -> bool:
    """Whether the top-level statements around `edits` are Python afterwards. All other statements stay the same."""
    starts = module.source.starts()
    first = bisect.bisect_right(starts, min(edit.start for edit in edits))
    last = bisect.bisect_right(starts, max(edit.end for edit in edits))
    touched = [node for node in module.tree.body if (node.end_lineno or 0) >= first - 1 and _top(node) <= last + 1]
    top = min([first, *map(_top, touched)])
    bottom = max([last, *(node.end_lineno or 0 for node in touched)])
    begin = starts[top - 1]
    end = starts[bottom] if bottom < len(starts) else len(module.source.text)
    moved = [Edit(edit.start - begin, edit.end - begin, edit.text) for edit in edits]
    return parses(applied(module.source.text[begin:end], moved))


def _top(node: ast.stmt) -> int:
    """First line of a statement or of its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def diff(source: Source, edits: list[Edit]) -> str:
    """Unified diff of `edits`; of a notebook, cell by cell."""
    if not source.cells:
        return unified(source.path, source.text, applied(source.text, edits), edits)
    return "".join(
        unified(f"{source.path}#cell-{cell.number}", cell.before, cell.after, list(cell.edits))
        for cell in cell_changes(source, edits) or []
    )


def diff_of_states(before: Source, after: Source) -> str:
    """Unified diff of two states of one file; of a notebook, cell by cell."""
    if not before.cells:
        return compared(before.path, before.text, after.text)
    old, new = cell_texts(before.raw), cell_texts(after.raw)
    return "".join(compared(f"{before.path}#cell-{number}", text, new.get(number, "")) for number, text in old.items())


def compared(path: str, before: str, after: str) -> str:
    """Unified diff for ``patch -p1``; empty if the texts are equal."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return _ended(lines)


def _ended(lines: Iterable[str]) -> str:
    """The diff as one text; a last line without a line end is marked, as diff tools do."""
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def unified(path: str, before: str, after: str, changes: list[Edit]) -> str:
    """Unified diff; only the lines around `changes` are compared, because files can be large."""
    first = before.count("\n", 0, changes[0].start)
    last = before.count("\n", 0, changes[-1].end)
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    if len(old) != before.count("\n") + (not before.endswith("\n")):  # other line ends than \n
        first, last = 0, len(old)
    top = max(0, first - _AROUND)
    tail = max(0, len(old) - last - _AROUND)
    blank = ["\n"] * top
    lines = difflib.unified_diff(
        blank + old[top : len(old) - tail], blank + new[top : len(new) - tail], f"a/{path}", f"b/{path}"
    )
    return _ended(lines)


def _offset(source: Source, line: int, column: int) -> int:
    return source.starts()[line - 1] + column


def _indent(source: Source, line: int) -> str:
    text = source.line(line)
    return text[: len(text) - len(text.lstrip())]


def _newline(source: Source) -> str:
    return "\r\n" if "\r\n" in source.text else "\n"
