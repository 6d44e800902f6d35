"""Manual partitioning, and the groups of ranks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import replace
from smp_advisor.reading.values import Result, Value, options
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.trace import Call

_WHOLE_GROUP = ("smp.mp_rank", "smp.mp_size", "smp.get_mp_group", "smp.mp_barrier")


@check("SMP114", "smp_torch")
def _shared_parameters(context: Context) -> Iterator[Hit]:
    places = _by_context(context) | _by_call(context)
    if not places:
        return
    for module in context.trace.modules:
        for node in module.all(ast.Assign):
            if isinstance(node.targets[0], ast.Attribute):
                yield from _tie(module, node, node.targets[0], places)


def _tie(module: Module, node: ast.Assign, target: ast.Attribute, places: dict[str, int]) -> Iterator[Hit]:
    if not isinstance(node.value, ast.Attribute):
        return
    first, second = _place(target.value, places), _place(node.value.value, places)
    if first is not None and second is not None and first[1] != second[1]:
        yield Hit(
            module,
            node,
            {"first_module": first[0], "first": first[1], "second_module": second[0], "second": second[1]},
        )


def _place(node: ast.expr, places: dict[str, int]) -> tuple[str, int] | None:
    """The module of the parameter and its partition, which may be that of an enclosing module."""
    path = _path(node)
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in places:
            return path, places[name]
    return None


def _path(node: ast.expr) -> str:
    """``embed`` of ``self.embed``; ``transformer.embed`` of ``model.transformer.embed``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed(parts))


def _by_context(context: Context) -> dict[str, int]:
    """Modules assigned inside ``with smp.partition(i)``, by name."""
    stages: dict[str, int] = {}
    for store in context.trace.stores:
        for value in store.contexts:
            stage = _stage(value)
            if stage is not None:
                stages[_path(store.node)] = stage
    return stages


def _stage(value: Value) -> int | None:
    for option in options(value):
        if isinstance(option, Result) and option.call.name == "smp.partition":
            number = constant(option.call.argument("i", 0) or option.call.argument("id"))
            return number if isinstance(number, int) else None
    return None


def _by_call(context: Context) -> dict[str, int]:
    """Modules placed with ``smp.set_partition(module, i)``, by name."""
    stages: dict[str, int] = {}
    for call in context.trace.named("smp.set_partition"):
        number = constant(call.argument("i", 1))
        if call.node.args and isinstance(number, int):
            stages[_path(call.node.args[0])] = number
    return stages


@check("SMP131", "smp_torch", needs="tensor_parallel")
def _pipeline_group(context: Context) -> Iterator[Hit]:
    for call in context.trace.named(*_WHOLE_GROUP):
        if not _for_reporting(call):
            name = call.name.rpartition(".")[2]
            edits = []
            if isinstance(call.node.func, ast.Attribute):
                renamed = f"{call.module.text(call.node.func.value)}.{name.replace('mp_', 'pp_')}"
                edits = [replace(call.module, call.node.func, renamed)]
            yield Hit(call.module, call.node, {"name": name}, edits)


def _for_reporting(call: Call) -> bool:
    """Whether the number only goes into a text, such as a message or a file name, or selects one rank."""
    node: ast.AST | None = call.node
    around = call.module.parent(call.node)
    if isinstance(around, ast.BinOp) and not isinstance(around.left, ast.Constant):
        return False
    while node is not None and not isinstance(node, ast.stmt):
        if isinstance(node, (ast.JoinedStr, ast.FormattedValue)):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
            return True
        if isinstance(node, ast.Call) and node is not call.node:
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in ("print", "format", "str", "info", "debug", "warning", "log"):
                return True
        node = call.module.parent(node)
    # `if smp.mp_rank() == 0:` selects the first rank of every replica, which is often intended.
    return isinstance(node, ast.If) and _is_zero_test(node.test, call.node)


def _is_zero_test(test: ast.expr, node: ast.Call) -> bool:
    return any(
        isinstance(part, ast.Compare)
        and part.left is node
        and isinstance(part.comparators[0], ast.Constant)
        and part.comparators[0].value == 0
        for part in ast.walk(test)
    )
