"""Execution order of statements, approximated by the order in the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import children, walk
from smp_advisor.scripts.adapt.survey import Function, Statement, Survey, assigned_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["flat", "read_after", "reads", "until_reassigned"]


def flat(nodes: Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Simple statements and the headers of compound statements, in source order."""
    for node in nodes:
        if isinstance(node, cst.SimpleStatementLine | cst.FunctionDef | cst.ClassDef | cst.SimpleStatementSuite):
            yield node
        elif isinstance(node, cst.If | cst.While):
            yield node.test
            yield from flat([node.body, *([node.orelse] if node.orelse is not None else [])])
        elif isinstance(node, cst.For):
            yield node.iter
            yield node.target
            yield from flat([node.body, *([node.orelse] if node.orelse is not None else [])])
        elif isinstance(node, cst.With):
            yield from node.items
            yield from flat([node.body])
        elif isinstance(node, cst.Else | cst.Finally | cst.ExceptHandler):
            yield from flat([node.body])
        elif isinstance(node, cst.Try):
            parts = [node.body, *node.handlers, node.orelse, node.finalbody]
            yield from flat([part for part in parts if part is not None])
        elif isinstance(node, cst.IndentedBlock):
            yield from flat(node.body)
        else:
            yield node


def reads(node: cst.CSTNode) -> list[str]:
    """Names that a statement reads: all names except plain assignment targets."""
    written: set[int] = set()
    for inner in walk(node):
        target = inner.target if isinstance(inner, cst.AssignTarget | cst.AnnAssign) else None
        if target is not None and not isinstance(target, cst.Subscript | cst.Attribute):
            written.update(id(name) for name in walk(target) if isinstance(name, cst.Name))
    names: list[str] = []
    stack: list[cst.CSTNode] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, cst.Name):
            if id(current) not in written:
                names.append(current.value)
        elif isinstance(current, cst.Attribute | cst.Arg):
            stack.append(current.value)
        else:
            stack.extend(reversed(children(current)))
    return names


def until_reassigned(nodes: Iterable[cst.CSTNode], name: str) -> list[cst.CSTNode]:
    """Statements that may read the current value of a name, up to and including its next assignment."""
    statements = []
    for node in flat(nodes):
        statements.append(node)
        names = {n.value for n in walk(node) if isinstance(n, cst.Name)}
        bound_by_loop = isinstance(node, cst.Name | cst.Tuple) and name in names
        if bound_by_loop or name in assigned_names(node):
            if name not in reads(node) or bound_by_loop:
                statements.pop()
            break
    return statements


def read_after(survey: Survey, last: Statement, function: Function) -> list[cst.CSTNode]:
    """Statements after `last` in its block and in the blocks around it, within its function."""
    following: list[cst.CSTNode] = []
    here: cst.CSTNode = last
    while True:
        siblings = survey.body_of(here)
        if here in siblings:
            following += siblings[siblings.index(here) + 1 :]  # type: ignore[arg-type]
        above = survey.parent(here)
        if above is None or above is function or isinstance(above, cst.Module):
            return following
        if isinstance(above, cst.For | cst.While) and above.orelse is not None and here is above.body:
            following.append(above.orelse)
        here = above
