"""Twelve ways to write the same script. Each rewrites a text without a change of what it does."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STYLES", "plain"]

_ENTRY = "_script"
_LIBRARIES = ("smp", "tsm", "xm")


def plain(text: str) -> str:
    return text


def aliased(text: str) -> str:
    """``import torch as th``."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch" and alias.asname is None:
                    alias.asname = "th"
        elif isinstance(node, ast.Name) and node.id == "torch":
            node.id = "th"
    return ast.unparse(tree)


def in_a_function(text: str, call: str = f"{_ENTRY}()", imports: str = "") -> str:
    """All statements in one function, which `call` runs."""
    tree = ast.parse(text)
    outside = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
    inside = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    assigned = sorted({name for node in inside for name in _names(node)})
    head: list[ast.stmt] = [ast.Global(assigned)] if assigned else []
    function = ast.parse(f"def {_ENTRY}():\n    pass").body[0]
    function.body = head + inside or function.body
    tree.body = [*outside, function]
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    others = [node for node in tree.body if node not in future]
    first = "\n".join(map(ast.unparse, [ast.fix_missing_locations(node) for node in future]))
    rest = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in others)
    return f"{first}\n{imports}\n{rest}\n{call}\n"


_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.If)


def _names(statement: ast.stmt) -> set[str]:
    nodes = ast.walk(statement)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def by_fire(text: str) -> str:
    return _entered(text, "fire.Fire({})", "import fire")


def by_thread(text: str) -> str:
    return _entered(text, "threading.Thread(target={}).start()", "import threading")


def by_registry(text: str) -> str:
    return _entered(text, 'TASKS = {{"train": {}}}\nTASKS[os.environ["TASK"]]()', "import os")


def _entered(text: str, call: str, imports: str) -> str:
    """``main()`` under ``if __name__`` run by a launcher."""
    tree = ast.parse(text)
    last = tree.body[-1]
    only = last.body[0] if isinstance(last, ast.If) and len(last.body) == 1 else None
    if not isinstance(only, ast.Expr) or not isinstance(only.value, ast.Call) or only.value.args:
        return in_a_function(text, call.format(_ENTRY), imports)
    tree.body = tree.body[:-1]
    future = [ast.unparse(node) for node in tree.body if getattr(node, "module", "") == "__future__"]
    body = [ast.unparse(node) for node in tree.body if getattr(node, "module", "") != "__future__"]
    return "\n".join([*future, imports, *body, call.format(ast.unparse(only.value.func)), ""])


class _Rewriter(ast.NodeTransformer):
    def __init__(self, rewrite: Callable[[ast.Call], ast.expr | None]) -> None:
        self.rewrite = rewrite

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return self.rewrite(node) or node


def _calls(text: str, rewrite: Callable[[ast.Call], ast.expr | None]) -> str:
    return ast.unparse(ast.fix_missing_locations(_Rewriter(rewrite).visit(ast.parse(text))))


def options_in_a_dictionary(text: str) -> str:
    """``f(x, **{"drop_last": True})``."""

    def rewrite(node: ast.Call) -> None:
        names = [keyword for keyword in node.keywords if keyword.arg is not None]
        if names and len(names) == len(node.keywords):
            keys: list[ast.expr | None] = [ast.Constant(keyword.arg) for keyword in names]
            node.keywords = [ast.keyword(None, ast.Dict(keys, [keyword.value for keyword in names]))]

    return _calls(text, rewrite)


def by_getattr(text: str) -> str:
    """``getattr(torch.cuda, "set_device")(0)``."""

    def rewrite(node: ast.Call) -> None:
        func = node.func
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in _LIBRARIES:
            node.func = ast.Call(ast.Name("getattr", ast.Load()), [func.value, ast.Constant(func.attr)], [])

    return _calls(text, rewrite)


def by_partial(text: str) -> str:
    """``functools.partial(DataLoader, batch_size=8)(dataset)``."""

    def rewrite(node: ast.Call) -> ast.expr | None:
        loader = isinstance(node.func, ast.Name) and node.func.id in ("DataLoader", "DistributedSampler")
        if not loader or not node.keywords:
            return None
        made = ast.Call(ast.parse("functools.partial", mode="eval").body, [node.func], node.keywords)
        return ast.Call(made, node.args, [])

    return _with_import(_calls(text, rewrite), "import functools")


def _with_import(text: str, line: str) -> str:
    if text.startswith("from __future__"):
        first, _, rest = text.partition("\n")
        return f"{first}\n{line}\n{rest}"
    return f"{line}\n{text}"


class _Blocks(ast.NodeTransformer):
    def __init__(self, opening: str) -> None:
        self.opening = opening

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        around = ast.parse(f"{self.opening}:\n    pass").body[0]
        around.body = node.body
        node.body = [around]
        return node


def loops_in_with(text: str) -> str:
    return _with_import(_blocks(text, "with contextlib.nullcontext()"), "import contextlib")


def loops_in_conditions(text: str) -> str:
    return _blocks(text, "if True")


def _blocks(text: str, opening: str) -> str:
    return ast.unparse(ast.fix_missing_locations(_Blocks(opening).visit(ast.parse(text))))


def windows_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


STYLES: tuple[Callable[[str], str], ...] = (
    plain,
    aliased,
    in_a_function,
    by_fire,
    by_thread,
    by_registry,
    options_in_a_dictionary,
    by_getattr,
    by_partial,
    loops_in_with,
    loops_in_conditions,
    windows_lines,
)
