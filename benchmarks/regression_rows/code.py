"""Digest of the code of a cell: equal if only comments, messages and local names differ."""

from __future__ import annotations

import ast
import re

from .requests import digest

__all__ = ["code_digest"]

_PROSE = re.compile(r"[A-Za-z']{2,}[,;:.]? [A-Za-z']+[,;:.]? [a-z']{2,}")


def code_digest(cell: str) -> str:
    """Digest of a cell's magics and of its code; empty for an empty cell."""
    if not cell:
        return ""
    magics = [line for line in cell.splitlines() if line.startswith(("%", "!"))]
    code = "\n".join(line for line in cell.splitlines() if not line.startswith(("%", "!")))
    tree = ast.parse(code)
    names = _bound_names(tree)
    stripped = _Stripped({name: f"name_{number}" for number, name in enumerate(names)}).visit(tree)
    return digest([magics, ast.dump(stripped)])


def _bound_names(tree: ast.AST) -> list[str]:
    """Names that the code binds itself, in the order in which they first occur."""
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, ast.arg):
            names[node.arg] = None
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = None
    return list(names)


class _Stripped(ast.NodeTransformer):
    """Code without docstrings and prose, with its own names numbered."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop docstrings."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Keep the class of an error and drop its message."""
        if isinstance(node.exc, ast.Call):
            node.exc.args = []
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop help texts; number the keywords of the code's own functions."""
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in {"help", "description"}]
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            for keyword in node.keywords:
                keyword.arg = self.names.get(keyword.arg or "", keyword.arg)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Replace every sentence by one word."""
        if isinstance(node.value, str) and _PROSE.search(node.value):
            return ast.Constant("prose")
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Number the code's own names."""
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Number parameters."""
        node.arg = self.names.get(node.arg, node.arg)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Number functions."""
        node.name = self.names.get(node.name, node.name)
        return self._body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Number classes."""
        node.name = self.names.get(node.name, node.name)
        return self._body(node)

    def _body(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        visited = self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return visited
