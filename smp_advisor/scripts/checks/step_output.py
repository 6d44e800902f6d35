"""The output of a step, with one value per microbatch, and the outputs of the model."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.module import wrap
from smp_advisor.reading.trace import Use
from smp_advisor.reading.values import (
    Collection,
    Constant,
    Function,
    Instance,
    Operation,
    Result,
    StepOutput,
    Value,
    options,
)
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import argument_node, constant, is_wrapped_model, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.source import Edit
    from smp_advisor.reading.trace import Call, Trace


_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def returned_keys(function: ast.FunctionDef | ast.AsyncFunctionDef, value: ast.expr | None) -> tuple[object, ...]:
    """Positions or keys of the tensors in a returned tuple or dictionary; empty for other values."""
    if isinstance(value, ast.Name):
        assigned = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and any(_is_name(target, value.id) for target in node.targets)
        ]
        changed = sum(_is_name(node, value.id) for node in ast.walk(function))
        value = assigned[0] if len(assigned) == 1 and changed == 2 else None
    if isinstance(value, ast.Tuple) and not any(isinstance(item, ast.Starred) for item in value.elts):
        return tuple(range(len(value.elts)))
    if isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) for key in value.keys):
        return tuple(key.value for key in value.keys if isinstance(key, ast.Constant))
    return ()


def read_keys(module: Module, call: ast.Call, keys: tuple[object, ...]) -> frozenset[object] | None:
    """The keys or positions of the call's result that the code around it reads; None if that is not visible."""
    parent = module.parent(call)
    if isinstance(parent, (ast.Subscript, ast.Attribute)):
        key = _key(module, call)
        return None if key is None else frozenset([key[0]])
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return None
    function: ast.AST | None = parent
    while function is not None and not isinstance(function, (*_Function, ast.Module)):
        function = module.parent(function)
    if not isinstance(function, _Function):
        return None  # another file may import the names of a module
    target = parent.targets[0]
    if isinstance(target, ast.Tuple):
        if len(target.elts) != len(keys) or not all(isinstance(name, ast.Name) for name in target.elts):
            return None
        loaded = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _loads(node)}
        shared = {
            name for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }
        names = [name.id for name in target.elts if isinstance(name, ast.Name)]
        return frozenset(key for key, name in zip(keys, names, strict=True) if name in loaded | shared)
    return _keys_of_name(module, function, target) if isinstance(target, ast.Name) else None


def _keys_of_name(module: Module, function: ast.AST, target: ast.Name) -> frozenset[object] | None:
    read: set[object] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or node.id != target.id or node is target:
            continue
        key = _key(module, node)
        if not _loads(node) or key is None:
            return None
        read.add(key[0])
    return frozenset(read)


def _key(module: Module, node: ast.expr) -> tuple[object] | None:
    """The literal by which a value is read: ``out[0]``, ``out["loss"]`` or ``out.get("loss")``."""
    parent = module.parent(node)
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant):
        return (parent.slice.value,)
    if isinstance(parent, ast.Attribute) and parent.attr == "get":
        call = module.parent(parent)
        if isinstance(call, ast.Call) and call.func is parent and call.args and isinstance(call.args[0], ast.Constant):
            return (call.args[0].value,)
    return None


def _loads(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


_ATTRIBUTES = frozenset(
    f".{name}"
    for name in (
        *("item", "backward", "detach", "cpu", "cuda", "mean", "sum", "numpy", "tolist", "to", "float", "double"),
        *("half", "argmax", "size", "shape", "view", "clone", "data", "dim", "reshape", "flatten", "max", "min"),
        *("abs", "sqrt", "exp", "log"),
    )
)
_FUNCTIONS = ("float", "int", "torch.", "math.", "numpy.", "tensorflow.", "horovod.")
_TAKE_ANYTHING = ("torch.save", "tensorflow.print")
_PAIRING = ("zip", "list", "tuple", "enumerate")


def tensor_uses(trace: Trace) -> Iterator[Use]:
    """Arithmetic, attributes of tensors and calls of functions that take tensors."""
    for use in trace.uses:
        if not use.how.startswith(".") or use.how in _ATTRIBUTES:
            yield use
    for call in trace.calls:
        if _formats_numbers(call) or _takes_tensors(call):
            for node, value in zip(call.node.args, call.arguments, strict=False):
                for output in _outputs_in(value):
                    yield Use(node, call.module, output, f"{call.name or call.module.text(call.node.func)}()")


def _takes_tensors(call: Call) -> bool:
    """Whether the call computes with its arguments."""
    if call.name:
        return call.name.startswith(_FUNCTIONS) and call.name not in _TAKE_ANYTHING
    maker = call.receiver.call.name if isinstance(call.receiver, Result) else ""
    computes = maker.startswith(("tensorflow.keras.", "keras.", "torchmetrics.", "torch.nn."))
    return computes and call.method in ("", "apply_gradients", "update_state", "update")


def _formats_numbers(call: Call) -> bool:
    """``"{:.3f}".format(loss)``."""
    text = call.receiver.value if call.method == "format" and isinstance(call.receiver, Constant) else None
    return isinstance(text, str) and ":" in text and "{" in text


def _outputs_in(value: Value, depth: int = 0) -> list[StepOutput]:
    """Outputs of a step in `value`, looking into lists and pairs."""
    outputs: list[StepOutput] = []
    for option in options(value) if depth < 5 else ():
        inner: list[Value] = []
        if isinstance(option, StepOutput):
            outputs.append(option)
        elif isinstance(option, Collection):
            inner = option.items
        elif isinstance(option, Operation) and option.operator == "comprehension":
            inner = [option.operands[0]]
        elif isinstance(option, Result) and option.call.name in _PAIRING:
            inner = [*option.call.arguments]
        outputs += [output for item in inner for output in _outputs_in(item, depth + 1)]
    return outputs


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
