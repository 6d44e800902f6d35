"""Digest of the code of a cell: equal if only comments, messages and local names differ."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .requests import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["code_digest"]

_SENTENCE = re.compile(r"[A-Za-z']{2,}[,;:.]? [a-z']{2,}")
_SCOPES = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_HELP_TEXTS = frozenset({"help", "description"})


def code_digest(cell: str) -> str:
    """Digest of a cell's magics and of its code; empty for an empty cell."""
    if not cell:
        return ""
    magics = [line for line in cell.splitlines() if line.startswith(("%", "!"))]
    code = "\n".join(line for line in cell.splitlines() if not line.startswith(("%", "!")))
    return digest([magics, ast.dump(_Normalized(ast.parse(code)).tree)])


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a scope binds, in the order of the code; those of scopes inside it are left to them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.arg):
            yield child.arg
        elif isinstance(child, ast.ExceptHandler) and child.name:
            yield child.name
        if not isinstance(child, _SCOPES):
            yield from _bound(child)


class _Normalized(ast.NodeTransformer):
    """Code without docstrings and messages, with numbers instead of the names that it binds itself."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: list[dict[str, str]] = []
        self.opened = 0
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.parameters = {
            node.name: [parameter.arg for parameter in [*node.args.args, *node.args.kwonlyargs]] for node in functions
        }
        self.tree = self._in_scope(tree)

    def visit(self, node: ast.AST) -> ast.AST | None:
        """Open a scope for functions, classes and comprehensions."""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.name = self._number(node.name)
        if isinstance(node, _SCOPES):
            return self._in_scope(node)
        return super().visit(node)

    def _in_scope(self, node: ast.AST) -> ast.AST:
        self.opened += 1
        names = dict.fromkeys(_bound(node))
        self.scopes.append({name: f"name_{self.opened}_{place}" for place, name in enumerate(names)})
        visited = self.generic_visit(node)
        self.scopes.pop()
        if isinstance(visited, ast.FunctionDef | ast.ClassDef) and not visited.body:
            visited.body = [ast.Pass()]
        return visited

    def _number(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop docstrings."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Keep the class of an error and drop its message."""
        if isinstance(node.exc, ast.Call):
            node.exc.args = []
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop help texts and printed sentences; replace keywords of the code's own functions by positions."""
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in _HELP_TEXTS]
        if isinstance(node.func, ast.Name):
            parameters = self.parameters.get(node.func.id, [])
            for keyword in node.keywords:
                if keyword.arg in parameters:
                    keyword.arg = f"parameter_{parameters.index(keyword.arg)}"
            if node.func.id == "print":
                node.args = [argument for argument in node.args if not _is_sentence(argument)]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Number the code's own names."""
        return ast.Name(self._number(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Number parameters."""
        node.arg = self._number(node.arg)
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        """Number caught errors."""
        node.name = node.name and self._number(node.name)
        return self.generic_visit(node)


def _is_sentence(node: ast.expr) -> bool:
    """Whether a printed value is a text for people, not a line that a program reads ("step 3 loss 2.1")."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return bool(_SENTENCE.search("".join(str(getattr(part, "value", "")) if _is_text(part) else "0" for part in parts)))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
