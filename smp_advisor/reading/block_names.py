"""Names that a block of statements reads from the code around it, and names that it binds."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNames:
    """Names of a block, in the scope of the block: variables of comprehensions and nested functions are excluded."""

    read: tuple[str, ...]
    """Names that the block may read before it binds them, in the order of their first read; builtins included."""
    bound: tuple[str, ...]
    """Names that the block may bind, in order: assignments, loop variables, imports, definitions, ``as``, ``:=``."""
    stored: tuple[str, ...]
    """Names of objects that the block changes: ``a`` in ``a.x = 1``, ``a[k] = 1`` and ``a.append(1)``."""
    leaving: tuple[str, ...]
    """Statements that leave the block or its function: return, break, continue, yield, await, global, nonlocal."""

    @property
    def updated(self) -> frozenset[str]:
        """Names with a value that the block both receives and replaces, such as ``total`` in ``total += loss``."""
        return frozenset(self.read) & frozenset(self.bound)


def names_of_block(code: str | Sequence[ast.stmt], *, defined: Iterable[str] = ()) -> BlockNames:
    """Names of a block of statements."""
    statements = ast.parse(code).body if isinstance(code, str) else code
    flow = _Flow(set(defined))
    flow.block(statements)
    return BlockNames(
        read=tuple(flow.read), bound=tuple(flow.bound), stored=tuple(flow.stored), leaving=tuple(flow.leaving)
    )


class _Flow(ast.NodeVisitor):
    """Visits statements in the order of execution, with the names that are certainly bound so far."""

    def __init__(self, certain: set[str]) -> None:
        self.certain = certain
        self.read: dict[str, None] = {}
        self.bound: dict[str, None] = {}
        self.stored: dict[str, None] = {}
        self.leaving: dict[str, None] = {}
        self._loops = 0

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def _bind(self, name: str) -> None:
        self.bound.setdefault(name)
        self.certain.add(name)

    def _read(self, name: str) -> None:
        if name not in self.certain:
            self.read.setdefault(name)

    def _branches(self, *branches: Sequence[ast.stmt]) -> None:
        """Visit alternatives; only names bound in each of them are certain afterwards."""
        before, outcomes = self.certain, []
        for branch in branches:
            self.certain = set(before)
            self.block(branch)
            outcomes.append(self.certain)
        self.certain = set.intersection(*outcomes)

    # -- expressions -------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id)
        elif isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        else:
            self.bound.setdefault(node.id)
            self.certain.discard(node.id)

    def _store(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            root: ast.expr = node
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name):
                self.stored.setdefault(root.id)
        self.generic_visit(node)

    visit_Attribute = visit_Subscript = _store  # noqa: N815

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target.id)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._nested(_parameters(node.args), [ast.Expr(node.body)])

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # evaluated in the scope around
        own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        inner = _Flow(self.certain | own)
        for position, generator in enumerate(node.generators):
            if position:
                inner.visit(generator.iter)
            for condition in generator.ifs:
                inner.visit(condition)
        for value in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            inner.visit(value)
        self._include(inner, own=own)
        for name in inner.bound:  # := binds in the scope around
            self.bound.setdefault(name)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def _nested(self, own: set[str], statements: Sequence[ast.stmt]) -> None:
        """A function or lambda: names that it reads from the scope around it."""
        inner = _Flow(set(own))
        inner.block(statements)
        shared = {
            n for s in statements for d in ast.walk(s) if isinstance(d, ast.Nonlocal | ast.Global) for n in d.names
        }
        self._include(inner, own=set(inner.bound) - shared | own)
        for name in shared & set(inner.bound):
            self.bound.setdefault(name)

    def _include(self, inner: _Flow, *, own: set[str]) -> None:
        for name in inner.read:
            if name not in own:
                self._read(name)
        for name in inner.stored:
            if name not in own:
                self.stored.setdefault(name)

    def _yield(self, node: ast.Yield | ast.YieldFrom | ast.Await) -> None:
        self.leaving.setdefault("await" if isinstance(node, ast.Await) else "yield")
        self.generic_visit(node)

    visit_Yield = visit_YieldFrom = visit_Await = _yield  # noqa: N815

    # -- statements --------------------------------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            # A method called for its effect: losses.append(loss), hidden.detach_()
            root: ast.expr = value.func.value
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name):
                self.stored.setdefault(root.id)
        self.visit(value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self.visit(node.target)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches(node.body, node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        before = set(self.certain)
        self.visit(node.target)
        self._loop(node.body, node.orelse, before)

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._loop(node.body, node.orelse, set(self.certain))

    def _loop(self, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt], before: set[str]) -> None:
        """The body may run zero times, so that its names are not certain afterwards."""
        self._loops += 1
        self.block(body)
        self._loops -= 1
        self.certain = before
        self._branches(orelse, [])

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        before = set(self.certain)
        self.block(node.body)
        self.block(node.orelse)
        outcomes = [self.certain]
        for handler in node.handlers:
            self.certain = set(before)
            self.visit(handler)
            outcomes.append(self.certain)
        self.certain = set.intersection(*outcomes)
        self.block(node.finalbody)

    visit_TryStar = visit_Try  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
        if node.name:
            self._bind(node.name)
        self.block(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        before, outcomes = self.certain, [set(self.certain)]
        for case in node.cases:
            self.certain = set(before)
            self.visit(case)
            outcomes.append(self.certain)
        self.certain = set.intersection(*outcomes)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic_visit(node)
        if node.name:
            self._bind(node.name)

    visit_MatchStar = visit_MatchAs  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(part)
        self._bind(node.name)
        self._nested(_parameters(node.args), node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)):
            self.visit(part)
        self._bind(node.name)
        self._nested(set(), node.body)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0])

    visit_Import = visit_ImportFrom = _import  # noqa: N815

    def visit_Return(self, node: ast.Return) -> None:
        self.leaving.setdefault("return")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break | ast.Continue) -> None:
        if not self._loops:
            self.leaving.setdefault(type(node).__name__.lower())

    visit_Continue = visit_Break  # noqa: N815

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.leaving.setdefault(type(node).__name__.lower())

    visit_Nonlocal = visit_Global  # noqa: N815


def _parameters(arguments: ast.arguments) -> set[str]:
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return names | {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
