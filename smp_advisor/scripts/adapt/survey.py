"""An index over one script: who calls what, in which function, under which imported name."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from smp_advisor.scripts.adapt.code import children, dotted, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Function", "Statement", "Survey", "assigned_names", "targets_of"]

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Function = cst.FunctionDef | None
"""A function of the script; None for the module itself."""

BUILTINS = frozenset(dir(builtins))


class Survey:
    """What the steps ask about a script; made anew after each of them."""

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self.nodes = list(walk(module))
        self._parents = {child: node for node in self.nodes for child in children(node)}
        self._functions = _functions_of(self.nodes, self._parents)
        self.memory: dict[str, Any] = {}
        """What others have worked out about this script."""
        self.calls = [node for node in self.nodes if isinstance(node, cst.Call)]
        self.functions = [node for node in self.nodes if isinstance(node, cst.FunctionDef)]
        self.classes = [node for node in self.nodes if isinstance(node, cst.ClassDef)]
        self.imported = _imported(self.nodes)
        self._bound = {function: _bound_in(function) for function in self.functions}

    # -- places ------------------------------------------------------------------------------------------------------

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """What the node is a part of; None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the node's parent up to the module."""
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def function(self, node: cst.CSTNode) -> Function:
        """Innermost function around the node."""
        return self._functions.get(node)

    def class_of(self, function: Function) -> cst.ClassDef | None:
        """Class whose method this is."""
        if function is None:
            return None
        for above in self.ancestors(function):
            if isinstance(above, cst.ClassDef):
                return above
            if isinstance(above, cst.FunctionDef):
                return None
        return None

    def statement(self, node: cst.CSTNode) -> Statement | None:
        """Innermost statement around the node, or the node itself."""
        for above in (node, *self.ancestors(node)):
            if isinstance(above, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return above
        return None

    def body_of(self, statement: cst.CSTNode) -> list[Statement]:
        """Statements of the block that holds this one."""
        parent = self.parent(statement)
        if isinstance(parent, cst.IndentedBlock | cst.Module):
            return cast("list[Statement]", list(parent.body))
        return []

    def outermost(self, node: cst.CSTNode) -> Statement:
        """Statement of the module itself that holds the node."""
        chain = [node, *self.ancestors(node)]
        found = chain[-2] if len(chain) > 1 else chain[0]
        return cast("Statement", found)

    def loops(self, node: cst.CSTNode) -> list[cst.For | cst.While]:
        """Loops around the node within its function, innermost first."""
        found: list[cst.For | cst.While] = []
        for above in self.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                break
            if isinstance(above, cst.For | cst.While):
                found.append(above)
        return found

    def follows(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Whether `second` stands after `first` in the text."""
        order = self.memory.get("order")
        if order is None:
            order = self.memory["order"] = {node: number for number, node in enumerate(self.nodes)}
        return bool(order[second] > order[first])

    # -- names -------------------------------------------------------------------------------------------------------

    def qualified(self, node: cst.CSTNode) -> str:
        """Full name of what an expression names: ``optim.Adam`` is ``torch.optim.Adam``; empty for anything else."""
        name = dotted(node)
        if name is None:
            return ""
        first, _, rest = name.partition(".")
        origin = self.imported.get(first, first)
        return f"{origin}.{rest}" if rest else origin

    def callee(self, call: cst.Call) -> str:
        """Full name of the function that a call names."""
        return self.qualified(call.func)

    def named(self, name: str) -> list[cst.FunctionDef]:
        """Functions and methods of this name."""
        return [function for function in self.functions if function.name.value == name]

    def classes_named(self, name: str) -> list[cst.ClassDef]:
        """Classes of this name."""
        return [definition for definition in self.classes if definition.name.value == name]

    def is_bound(self, function: Function, name: str) -> bool:
        """Whether the name is the function's own: a parameter, or assigned in it."""
        return function is not None and name in self._bound[function]

    def module_names(self) -> set[str]:
        """Names that the module itself holds: imports, definitions, assignments of its own level."""
        found = set(self.imported)
        for node in self.nodes:
            if isinstance(node, cst.FunctionDef | cst.ClassDef) and isinstance(self.parent(node), cst.Module):
                found.add(node.name.value)
            elif (
                isinstance(node, cst.AssignTarget | cst.For | cst.AnnAssign | cst.NamedExpr | cst.AsName)
                and self.function(node) is None
                and not any(isinstance(above, cst.ClassDef) for above in self.ancestors(node))
            ):
                found.update(_targets(node))
        return found

    def all_names(self) -> set[str]:
        """Every name in the text, attributes and keywords too."""
        return {node.value for node in self.nodes if isinstance(node, cst.Name)}

    def free_name(self, *wishes: str) -> str:
        """First of the names that the script does not use yet."""
        taken = self.all_names()
        for wish in wishes:
            if wish not in taken:
                return wish
        number = 2
        while f"{wishes[-1]}_{number}" in taken:
            number += 1
        return f"{wishes[-1]}_{number}"

    def assignments(self, function: Function, spelling: str) -> list[cst.Assign | cst.AnnAssign]:
        """Assignments to this name or attribute in the function, in order."""
        found: list[cst.Assign | cst.AnnAssign] = []
        for node in self.nodes:
            if isinstance(node, cst.Assign | cst.AnnAssign) and self.function(node) is function:
                targets = [target.target for target in node.targets] if isinstance(node, cst.Assign) else [node.target]
                if any(dotted(target) == spelling for target in targets):
                    found.append(node)
        return found

    def parameters(self, function: cst.FunctionDef) -> list[str]:
        """Names of the parameters that take an argument by position, then those by keyword only."""
        given = function.params
        return [parameter.name.value for parameter in (*given.posonly_params, *given.params, *given.kwonly_params)]


def _functions_of(
    nodes: list[cst.CSTNode], parents: dict[cst.CSTNode, cst.CSTNode]
) -> dict[cst.CSTNode, cst.FunctionDef]:
    """Innermost function around each node; parents come before their children."""
    found: dict[cst.CSTNode, cst.FunctionDef] = {}
    for node in nodes:
        parent = parents.get(node)
        if isinstance(parent, cst.FunctionDef):
            found[node] = parent
        elif parent is not None and parent in found:
            found[node] = found[parent]
    return found


def targets_of(statement: cst.CSTNode) -> list[cst.BaseExpression]:
    """What a statement assigns to."""
    if isinstance(statement, cst.Assign):
        return [target.target for target in statement.targets]
    if isinstance(statement, cst.AnnAssign | cst.AugAssign):
        return [statement.target]
    return []


def assigned_names(node: cst.CSTNode) -> set[str]:
    """Names that a statement binds or changes, whatever is nested in it."""
    found: set[str] = set()
    for inner in walk(node):
        if isinstance(
            inner, cst.AssignTarget | cst.For | cst.AnnAssign | cst.AugAssign | cst.NamedExpr | cst.AsName | cst.CompFor
        ):
            found.update(_targets(inner))
        elif isinstance(inner, cst.FunctionDef | cst.ClassDef):
            found.add(inner.name.value)
    return found


def _targets(node: cst.CSTNode) -> set[str]:
    target = node.name if isinstance(node, cst.AsName) else getattr(node, "target", None)
    found: set[str] = set()
    stack = [target]
    while stack:
        current = stack.pop()
        if isinstance(current, cst.Name):
            found.add(current.value)
        elif isinstance(current, cst.Tuple | cst.List):
            stack.extend(element.value for element in current.elements)
        elif isinstance(current, (cst.Subscript, cst.StarredElement)):
            stack.append(current.value)
    return found


def _bound_in(function: cst.FunctionDef) -> set[str]:
    given = function.params
    names = {p.name.value for p in (*given.posonly_params, *given.params, *given.kwonly_params)}
    for star in (given.star_arg, given.star_kwarg):
        if isinstance(star, cst.Param):
            names.add(star.name.value)
    stack: list[cst.CSTNode] = [function.body]
    while stack:
        current = stack.pop()
        if isinstance(current, cst.FunctionDef | cst.ClassDef):
            names.add(current.name.value)
            continue
        if isinstance(current, cst.Lambda):
            continue
        if isinstance(current, cst.Global):
            names -= {item.name.value for item in current.names}
            continue
        if isinstance(current, cst.AssignTarget | cst.For | cst.AnnAssign | cst.AugAssign | cst.NamedExpr | cst.AsName):
            names |= _targets(current)
        if isinstance(current, cst.Import | cst.ImportFrom):
            names |= set(_imported([current]))
        stack.extend(children(current))
    return names


def _imported(nodes: list[cst.CSTNode]) -> dict[str, str]:
    """Local name to full name, for every import of the script."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, cst.Import):
            for alias in node.names:
                name = dotted(alias.name) or ""
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                    found[alias.asname.name.value] = name
                else:
                    first = name.partition(".")[0]
                    found[first] = first
        elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
            base = "." * len(node.relative) + (dotted(node.module) or "" if node.module is not None else "")
            for alias in node.names:
                name = dotted(alias.name) or ""
                local = alias.asname.name if alias.asname is not None else alias.name
                if isinstance(local, cst.Name):
                    found[local.value] = f"{base}.{name}" if base else name
    return found
