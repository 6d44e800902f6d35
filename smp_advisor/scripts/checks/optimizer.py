"""The optimizer: wrapped, created from the right parameters, each once."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import Edit, after_statement
from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import Collection, External, Instance, Item, Mapping, Operation, Result, Value, options
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.names import is_optimizer
from smp_advisor.scripts.queries import is_optimizer_call, is_wrapped_optimizer, origins, updates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_PARAMETERS = ("parameters", "named_parameters")
_CHECKPOINTING = ("save_checkpoint", "resume_from_checkpoint", "load_state_dict", "local_state_dict")


@check("SMP103", "smp_torch")
def _optimizer_wrapped(context: Context) -> Iterator[Hit]:
    if context.trainer:
        return
    if not (context.wrappings or context.trace.named("smp.init")):
        return
    reported: set[ast.Call] = set()
    wrapped = {step.node for step, stepped in updates(context.trace) if is_wrapped_optimizer(stepped)}
    for step, stepped in updates(context.trace):
        if not step.reached or not is_optimizer_call(stepped):
            continue
        calls = [origin.call for origin in origins(stepped) if isinstance(origin, Result)]
        for call in calls:
            wrappings = _wrappings(context)
            elsewhere = bool(wrappings) and all(exclusive(step, wrapping) for wrapping in wrappings)
            # If the step also gets the wrapped optimizer, the plain one is for runs without the library.
            if call.node not in reported and not elsewhere and step.node not in wrapped:
                reported.add(call.node)
                yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]}, _wrap(context, call))
    if not reported and not any(_is_optimizer(stepped) for _, stepped in updates(context.trace)):
        for call in _handed_on(context):
            yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]}, _wrap(context, call))


def _is_optimizer(value: Value) -> bool:
    """Whether `value` may be an optimizer instead of a scheduler. A value that is not visible may be one."""
    candidates = [origin for origin in origins(value) if not isinstance(origin, Instance)]
    return any(
        not isinstance(candidate, Result) or is_optimizer(candidate.call.name) or is_wrapped_optimizer(candidate)
        for candidate in candidates
    )


def _handed_on(context: Context) -> list[Call]:
    """Optimizers of the wrapped model that the script passes to its own class, which steps them."""
    passed = [
        option
        for call in context.trace.calls
        if call.function is not None and call.reached
        for value in call.bound.values()
        for option in options(value)
    ]
    if any(is_wrapped_optimizer(value) for value in passed):
        return []
    optimizers = [
        call for call in context.trace.calls if is_optimizer(call.name) and call.reached and context.wrappings
    ]
    return [call for call in optimizers if any(isinstance(value, Result) and value.call is call for value in passed)]


def _wrappings(context: Context) -> list[Call]:
    return context.trace.named("smp.DistributedOptimizer")


def _wrap(context: Context, call: Call) -> list[Edit | None]:
    statement = call.module.statement(call.node)
    if context.settings.fp16 is not False and context.settings.fp16 is not None:
        return []  # the wrapper then needs a loss scale, which the user must choose
    scope = call.functions[-1].scope if call.functions else call.module.scope
    smp = scope.find("smp")
    if (
        not isinstance(statement, ast.Assign)
        or statement.value is not call.node
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
        or not (isinstance(smp, External) and smp.path == "smp")
        or any(wrapping.order < call.order for wrapping in _wrappings(context))
        or (context.wrappings and call.order < context.wrappings[0].order and context.settings.tensor_parallel)
    ):
        return []
    name = statement.targets[0].id
    return [after_statement(call.module, statement, f"{name} = smp.DistributedOptimizer({name})")]


@check("SMP104", "smp_torch", needs="tensor_parallel")
def _optimizer_after_model(context: Context) -> Iterator[Hit]:
    wrappings = context.wrappings
    if not wrappings:
        return
    plain = [origin for wrapping in wrappings for model in wrapping.arguments[:1] for origin in origins(model)]
    for call in context.trace.calls:
        if not is_optimizer(call.name) or not call.reached or any(exclusive(call, wrapping) for wrapping in wrappings):
            continue
        early = call.order < wrappings[0].order
        if early or (call.arguments and _parameters_of(call.arguments[0]) & {id(model) for model in plain}):
            yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]})


def _parameters_of(value: Value, depth: int = 0) -> set[int]:
    """The models whose ``parameters()`` are certainly in `value`, by identity."""
    models: set[int] = set()
    if isinstance(value, Result) and value.call.method in _PARAMETERS and value.call.receiver is not None:
        owners = origins(value.call.receiver)
        return {id(owners[0])} if len(owners) == 1 else models
    parts: tuple[Value, ...] = ()
    if isinstance(value, Operation):
        parts = value.operands
    elif isinstance(value, Collection):
        parts = tuple(value.items)
    elif isinstance(value, Mapping):
        parts = tuple(value.values().values())
    elif isinstance(value, Item):
        parts = (value.owner,)
    elif isinstance(value, Result) and value.call.name in ("list", "tuple", "iter", "filter", "itertools.chain"):
        parts = value.call.arguments
    for part in parts if depth < 6 else ():
        models |= _parameters_of(part, depth + 1)
    return models


@check("SMP128", "smp_torch", needs="tensor_parallel")
def _parameters_once(context: Context) -> Iterator[Hit]:
    if not context.trace.methods(*_CHECKPOINTING):
        return
    for call in context.trace.calls:
        parameters = call.node.args[0] if call.node.args else None
        if is_optimizer(call.name) and parameters is not None:
            source = _definition(call, parameters)
            if _repeats(source) or _gathered_twice(call, parameters):
                yield Hit(call.module, call.node, {})


def _definition(call: Call, name: ast.expr) -> ast.expr:
    """The last expression assigned to the name before the call, in the same function."""
    if not isinstance(name, ast.Name):
        return name
    around: ast.AST = call.functions[-1].node if call.functions else call.module.tree
    assigned = [
        node
        for node in ast.walk(around)
        if isinstance(node, ast.Assign)
        and node.lineno < name.lineno
        and any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
    ]
    return max(assigned, key=lambda node: node.lineno).value if assigned else name


def _gathered_twice(call: Call, parameters: ast.expr) -> bool:
    """Whether a loop over all modules adds each module's parameters, which its parent already has."""
    around: ast.AST = call.functions[-1].node if call.functions else call.module.tree
    if not isinstance(parameters, ast.Name):
        return False
    for loop in ast.walk(around):
        if isinstance(loop, ast.For) and _calls(loop.iter, "modules", "named_modules"):
            body = ast.Module(loop.body, [])
            adds = any(_adds_to(part, parameters.id) for part in ast.walk(body))
            if adds and not _recurses_not(body) and not any(isinstance(part, ast.If) for part in ast.walk(body)):
                return True
    return False


def _adds_to(node: ast.AST, name: str) -> bool:
    """``name += list(module.parameters())`` and ``name.extend(module.parameters())``."""
    value: ast.expr | None = None
    if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == name:
        value = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "extend":
        value = node.args[0] if node.args and getattr(node.func.value, "id", "") == name else None
    return value is not None and bool(_owners(value))


def _repeats(node: ast.expr) -> bool:
    """Whether the list certainly contains shared parameters more than once."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _repeats(node.left) or _repeats(node.right) or _overlap(_owners(node.left) + _owners(node.right))
    if isinstance(node, ast.Call):
        is_list = isinstance(node.func, ast.Name) and node.func.id in ("list", "iter", "tuple")
        duplicates = any(
            keyword.arg == "remove_duplicate" and isinstance(keyword.value, ast.Constant) and not keyword.value.value
            for keyword in node.keywords
        )
        chained = ast.unparse(node.func) in ("chain", "itertools.chain") and not any(
            isinstance(argument, ast.Starred) for argument in node.args
        )
        if chained and _overlap([owner for argument in node.args for owner in _owners(argument)]):
            return True
        return duplicates or (is_list and bool(node.args) and _repeats(node.args[0]))
    if isinstance(node, (ast.List, ast.Tuple)):
        return _overlap(_owners(node))
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        modules = any(_calls(generator.iter, "modules", "named_modules") for generator in node.generators)
        inner = any(_calls(generator.iter, "parameters", "named_parameters") for generator in node.generators[1:])
        return (modules and inner and not _recurses_not(node) and not any(g.ifs for g in node.generators)) or any(
            _repeats(generator.iter) for generator in node.generators
        )
    return False


def _owners(node: ast.expr) -> list[str]:
    """Objects whose ``parameters()`` are in a list or a sum of lists: ``model`` and ``model.head``."""
    return [
        ast.unparse(part.func.value)
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "parameters"
    ]


def _overlap(owners: list[str]) -> bool:
    """Whether one of them equals or contains another."""
    ordered = sorted(owners)
    return any(second == first or second.startswith(f"{first}.") for first, second in itertools.pairwise(ordered))


def _calls(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def _recurses_not(node: ast.AST) -> bool:
    return any(isinstance(part, ast.keyword) and part.arg == "recurse" for part in ast.walk(node))
