"""The output of a step, with one value per microbatch, and the outputs of the model."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import Edit, wrap
from smp_advisor.reading.values import Constant, Function, Instance, Operation, Result, Value, options
from smp_advisor.scripts.checks.output_reads import read_keys, returned_keys
from smp_advisor.scripts.checks.tensor_uses import tensor_uses
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import argument_node, constant, is_wrapped_model, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.trace import Call, Use

_REDUCTIONS = frozenset(["reduce_mean", "reduce_sum", "concat", "stack", "outputs", "merge", "accumulate"])
_NUMBERS = frozenset({"item", "tolist", "size", "numel", "dim"})
_FLAGS = {"output_hidden_states": "hidden_states", "output_attentions": "attentions"}


@check("SMP107")
def _reduced(context: Context) -> Iterator[Hit]:
    for use in tensor_uses(context.trace):
        if not all(_is_number(option) for option in options(use.output.of)):
            yield Hit(
                use.module,
                use.node,
                {"how": use.how, "step": _step_name(use.output.call), "text": use.module.text(use.node)},
                _reduce_at_call(use),
            )


def _is_number(value: Value) -> bool:
    """Whether the step returns a Python number, which the library returns as a plain list."""
    if isinstance(value, Constant):
        return True
    if isinstance(value, Result):
        return value.call.method in _NUMBERS or value.call.name in ("float", "int", "len", "round")
    return isinstance(value, Operation) and all(_is_number(operand) for operand in value.operands)


def _step_name(call: Call) -> str:
    return call.module.text(call.node.func)


def _reduce_at_call(use: Use) -> list[Edit]:
    """``loss = step(...)`` becomes ``loss = step(...).reduce_mean()`` if the step returns only the loss."""
    call = use.output.call
    statement = call.module.statement(call.node)
    if (
        not isinstance(statement, ast.Assign)
        or statement.value is not call.node
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
        or call.function is None
        or not _returns_loss(call.function)
    ):
        return []
    name = statement.targets[0].id
    if "loss" not in name.lower() or _reduces(call.module, statement, name):
        return []
    return list(wrap(call.module, call.node, "", ".reduce_mean()"))


def _returns_loss(function: Function) -> bool:
    if isinstance(function.node, ast.Lambda):
        return False
    returns = [node.value for node in ast.walk(function.node) if isinstance(node, ast.Return)]
    return bool(returns) and all(isinstance(value, ast.Name) and "loss" in value.id.lower() for value in returns)


def _reduces(module: Module, statement: ast.stmt, name: str) -> bool:
    """Whether the function uses `name` as one value per microbatch elsewhere."""
    around: ast.AST | None = statement
    while around is not None and not isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        around = module.parent(around)
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in _REDUCTIONS
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in ast.walk(around or module.tree)
    )


@check("SMP113", "smp_torch")
def _unused_outputs(context: Context) -> Iterator[Hit]:
    if not context.wrappings:
        return
    for flag, attribute in _FLAGS.items():
        for call in context.trace.calls:
            value = call.argument(flag)
            model = call.receiver is not None and is_wrapped_model(call.receiver)
            is_configuration = call.name.startswith("transformers.")
            if constant(value) is True and (model or is_configuration) and not _read(context, call.module, attribute):
                node = argument_node(call, flag) or call.node
                yield Hit(call.module, node, {"flag": flag, "output": attribute}, variant="flag")
        for store in context.trace.stores:
            if (
                store.node.attr == flag
                and constant(store.value) is True
                and not _read(context, store.module, attribute)
            ):
                yield Hit(store.module, store.node, {"flag": flag, "output": attribute}, variant="flag")
    yield from _thrown_away(context)


def _read(context: Context, here: Module, attribute: str) -> bool:
    """Whether the file with the flag, or the script itself, reads the output. The files of models always do."""
    return any(
        any(node.attr == attribute for node in module.all(ast.Attribute))
        or any(node.value == attribute for node in module.all(ast.Constant))
        for module in context.trace.modules
        if module is here or module.entry
    )


def _thrown_away(context: Context) -> Iterator[Hit]:
    calls = [(call, keys) for call in context.models() if len(keys := _returned(call)) > 1]
    for call, keys in calls:
        parent = call.module.parent(call.node)
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
            yield Hit(call.module, call.node, {"returned": len(keys)}, variant="one used")
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
            names = [target.id for target in parent.targets[0].elts if isinstance(target, ast.Name)]
            unused = sum(name.startswith("_") for name in names)
            if unused:
                yield Hit(call.module, call.node, {"returned": len(keys), "dropped": unused}, variant="dropped")
    marked = {function.node for function in context.trace.functions if function.step is not None}
    if not marked - {call.step.node for call, _ in calls if call.step is not None}:
        yield from _never_read(calls)


def _never_read(calls: list[tuple[Call, tuple[object, ...]]]) -> Iterator[Hit]:
    """Outputs that no call of the model reads by their key, position or name."""
    reads = [read_keys(call.module, call.node, keys) for call, keys in calls]
    by_name = [call for call, _ in calls if isinstance(call.module.parent(call.node), ast.Assign)]
    if len({keys for _, keys in calls}) != 1 or not by_name or any(read is None for read in reads):
        return
    unread = [key for key in calls[0][1] if not any(read is not None and key in read for read in reads)]
    first = by_name[0]
    dropped = any(read is not None and len(read) < len(calls[0][1]) for read in reads)
    targets = getattr(first.module.parent(first.node), "targets", [])
    marked = isinstance(targets[0], ast.Tuple) and any(
        isinstance(target, ast.Name) and target.id.startswith("_") for target in targets[0].elts
    )
    if unread and dropped and not marked:
        shown = ", ".join(repr(key) for key in unread)
        yield Hit(first.module, first.node, {"outputs": shown}, variant="never read")


def _returned(call: Call) -> tuple[object, ...]:
    """Keys or positions of the values that each class of wrapped model returns; empty if they differ."""
    alternatives = {_keys(module) for module in _wrapped_modules(call.receiver)}
    return alternatives.pop() if len(alternatives) == 1 else ()


def _wrapped_modules(value: Value | None) -> list[Instance]:
    modules: list[Instance] = []
    for origin in origins(value):
        if isinstance(origin, Result) and origin.call.name == "smp.DistributedModel":
            inner = origin.call.argument("module", 0)
            modules += [option for option in origins(inner) if isinstance(option, Instance)]
    return modules


def _keys(instance: Instance) -> tuple[object, ...]:
    forward = instance.cls.find("forward")
    if not isinstance(forward, Function) or isinstance(forward.node, ast.Lambda):
        return ()
    alternatives = {
        returned_keys(forward.node, node.value) for node in ast.walk(forward.node) if isinstance(node, ast.Return)
    }
    return alternatives.pop() if len(alternatives) == 1 else ()
