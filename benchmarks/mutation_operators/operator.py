"""Mutation operators: a rule of the documentation, and a way to break it in a script that follows it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

OPERATORS: list[Operator] = []

PIPELINE = {"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": True}
TENSOR = {"pipeline_parallel_degree": 1, "tensor_parallel_degree": 2, "ddp": True}
FP16 = {"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": True, "fp16": True}
SHARDED = {"sharded_data_parallel_degree": 2, "ddp": True}


class Script:
    """A text with its tree, to be changed at the places of nodes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        # Columns of `ast` count bytes.
        lines = text.encode().splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def source(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text.encode()[start:end].decode()

    def swap(self, *changes: tuple[ast.AST | tuple[int, int], str]) -> str:
        """The text with each node (or span) replaced; texts of several lines are indented like the node's line."""
        data = self.text.encode()
        spans = [(change if isinstance(change, tuple) else self.span(change), new) for change, new in changes]
        for (start, end), new in sorted(spans, reverse=True):
            line_start = data.rfind(b"\n", 0, start) + 1
            line = data[line_start:start].decode()
            indent = line[: len(line) - len(line.lstrip())]
            data = data[:start] + new.replace("\n", "\n" + indent).encode() + data[end:]
        return data.decode()

    def on_top(self, text: str, *changes: tuple[ast.AST | tuple[int, int], str]) -> str:
        """`text` after the last import on the top level, and the changes made."""
        imports = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        end = self.span(imports[-1])[1]
        return self.swap(((end, end), "\n" + text), *changes)

    def without(self, statement: ast.stmt) -> str:
        return self.swap((statement, "pass"))

    def without_argument(self, call: ast.Call, keyword: ast.keyword) -> str:
        """The call without one of its keyword arguments."""
        kept = [self.source(argument) for argument in call.args]
        kept += [
            f"{k.arg}={self.source(k.value)}" if k.arg else f"**{self.source(k.value)}"
            for k in call.keywords
            if k is not keyword
        ]
        return self.swap((call, f"{self.source(call.func)}({', '.join(kept)})"))

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while (node := self._parents.get(node)) is not None:  # type: ignore[assignment]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        return next(above for above in (node, *self.ancestors(node)) if isinstance(above, ast.stmt))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        parent = self.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(parent, name, None)
            if isinstance(body, list) and statement in body:
                return body
        return []

    def calls(self, *endings: str) -> list[ast.Call]:
        """Calls whose function ends in one of these names, in the order of the text."""
        names = tuple(f".{ending}" for ending in endings)
        return [call for called, call in self._calls if f".{called}".endswith(names)]

    @cached_property
    def _calls(self) -> list[tuple[str, ast.Call]]:
        found = [(ast.unparse(node.func), node) for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return sorted(found, key=lambda pair: (pair[1].lineno, pair[1].col_offset))

    def steps(self) -> list[ast.FunctionDef]:
        """Functions decorated with smp.step."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef) and any("smp.step" in ast.unparse(d) for d in node.decorator_list)
        ]


Break = Callable[[Script], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Operator:
    name: str
    library: str
    """torch, tensorflow, v2 or compiler: the kind of script it applies to."""
    rule: str
    """The rule of the documentation."""
    page: str
    apply: Break
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Parameters under which breaking the rule does harm."""
    needs: str = ""
    """Text without which a script is not written for such a plan."""


def operator(
    library: str, rule: str, page: str, plan: Mapping[str, Any] | None = None, needs: str = ""
) -> Callable[[Break], Break]:
    def register(function: Break) -> Break:
        OPERATORS.append(
            Operator(
                name=f"{library}.{function.__name__}",
                library=library,
                rule=rule,
                page=page,
                apply=function,
                plan=plan or {},
                needs=needs,
            )
        )
        return function

    return register


def keyword_of(call: ast.Call, name: str) -> ast.keyword | None:
    return next((keyword for keyword in call.keywords if keyword.arg == name), None)
