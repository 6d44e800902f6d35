"""Index of one script: parents, functions, calls, imports, names, and the order in which statements run."""

from __future__ import annotations

import builtins
import itertools
from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from smp_advisor.files import table
from smp_advisor.reading.outside import canonical
from smp_advisor.scripts.adapt.code import children, dotted, walk

if TYPE_CHECKING:
    from collections.abc import Iterator


def known_names(group: str) -> tuple[str, ...]:
    """Names of a group in ``data/names.toml``."""
    return tuple(table("smp_advisor.scripts.adapt", "data/names.toml")[group])


Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Function = cst.FunctionDef | None
"""A function of the script; None for the module itself."""

BUILTINS = frozenset(dir(builtins))


class Survey:
    """Index of a script, rebuilt after each step."""

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self.nodes = list(walk(module))
        self._order = {node: number for number, node in enumerate(self.nodes)}
        self._parents = {child: node for node in self.nodes for child in children(node)}
        self._functions: dict[cst.CSTNode, cst.FunctionDef] = {}
        for node in self.nodes:  # parents come before their children
            parent = self._parents.get(node)
            function = parent if isinstance(parent, cst.FunctionDef) else self._functions.get(parent or module)
            if function is not None:
                self._functions[node] = function
        self._given: set[str] = set()
        self.cache: dict[str, Any] = {}
        """Results computed once per script, by name."""
        self.calls = [node for node in self.nodes if isinstance(node, cst.Call)]
        self.functions = [node for node in self.nodes if isinstance(node, cst.FunctionDef)]
        self.classes = [node for node in self.nodes if isinstance(node, cst.ClassDef)]
        self.imported = _imported(self.nodes)

    # -- places ------------------------------------------------------------------------------------------------------

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Parent of the node; None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Ancestors of the node, from its parent to the module."""
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def function(self, node: cst.CSTNode) -> Function:
        """Innermost function around the node."""
        return self._functions.get(node)

    def class_of(self, function: Function) -> cst.ClassDef | None:
        """Class of a method; None for other functions."""
        around = self.ancestors(function) if function is not None else iter(())
        inner = next((above for above in around if isinstance(above, cst.ClassDef | cst.FunctionDef)), None)
        return inner if isinstance(inner, cst.ClassDef) else None

    def statement(self, node: cst.CSTNode) -> Statement | None:
        """Innermost statement around the node, or the node itself."""
        for above in (node, *self.ancestors(node)):
            if isinstance(above, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return above
        return None

    def body_of(self, statement: cst.CSTNode) -> list[Statement]:
        """Statements of the block that contains this one."""
        parent = self.parent(statement)
        if isinstance(parent, cst.IndentedBlock | cst.Module):
            return cast("list[Statement]", list(parent.body))
        return []

    def outermost(self, node: cst.CSTNode) -> Statement:
        """Module-level statement that contains the node."""
        chain = [node, *self.ancestors(node)]
        return cast("Statement", chain[-2] if len(chain) > 1 else chain[0])

    def loops(self, node: cst.CSTNode) -> list[cst.For | cst.While]:
        """Loops around the node within its function, innermost first."""
        loops: list[cst.For | cst.While] = []
        for above in self.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                break
            if isinstance(above, cst.For | cst.While):
                loops.append(above)
        return loops

    def follows(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Whether `second` comes after `first` in the source."""
        return self._order[second] > self._order[first]

    # -- names -------------------------------------------------------------------------------------------------------

    def qualified(self, node: cst.CSTNode) -> str:
        """Qualified name, for example ``torch.optim.Adam`` for ``optim.Adam``; empty if the node is not a name."""
        first, dot, attributes = (dotted(node) or "").partition(".")
        return canonical(f"{self.imported.get(first, first)}{dot}{attributes}")

    def callee(self, call: cst.Call) -> str:
        """Qualified name of the called function."""
        return self.qualified(call.func)

    def named(self, name: str) -> list[cst.FunctionDef]:
        """Functions and methods of this name."""
        return [function for function in self.functions if function.name.value == name]

    def classes_named(self, name: str) -> list[cst.ClassDef]:
        """Classes of this name."""
        return [definition for definition in self.classes if definition.name.value == name]

    def all_names(self) -> set[str]:
        """All names in the source, including attributes and keywords."""
        return {node.value for node in self.nodes if isinstance(node, cst.Name)}

    def free_name(self, *preferred: str) -> str:
        """First of the preferred names that is neither in the script nor given before; a number follows the last."""
        further = (f"{preferred[-1]}_{number}" for number in itertools.count(2))
        taken = self.all_names() | self._given
        name = next(name for name in itertools.chain(preferred, further) if name not in taken)
        self._given.add(name)
        return name

    def assignments(self, function: Function, spelling: str) -> list[cst.Assign | cst.AnnAssign]:
        """Assignments to this name or attribute in the function, in order."""
        return [
            node
            for node in self.nodes
            if isinstance(node, cst.Assign | cst.AnnAssign)
            and self.function(node) is function
            and any(dotted(target) == spelling for target in targets_of(node))
        ]


def targets_of(statement: cst.CSTNode) -> list[cst.BaseExpression]:
    """Targets of an assignment; empty for other statements."""
    if isinstance(statement, cst.Assign):
        return [target.target for target in statement.targets]
    if isinstance(statement, cst.AnnAssign | cst.AugAssign):
        return [statement.target]
    return []


def _imported(nodes: list[cst.CSTNode]) -> dict[str, str]:
    """Qualified name of each imported local name."""
    origins: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, cst.Import):
            for alias in node.names:
                name = dotted(alias.name) or ""
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                    origins[alias.asname.name.value] = name
                else:
                    first = name.partition(".")[0]
                    origins[first] = first
        elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
            base = "." * len(node.relative) + (dotted(node.module) or "" if node.module is not None else "")
            for alias in node.names:
                name = dotted(alias.name) or ""
                local = alias.asname.name if alias.asname is not None else alias.name
                if isinstance(local, cst.Name):
                    origins[local.value] = f"{base}.{name}" if base else name
    return origins
