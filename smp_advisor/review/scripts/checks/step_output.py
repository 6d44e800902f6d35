"""The output of a step, with one value per microbatch, and the outputs of the model."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import Use
from smp_advisor.review.reading.values import (
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
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import argument_node, constant, is_wrapped_model, makers, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.trace import Call, Trace


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
        text = call.receiver.value if call.method == "format" and isinstance(call.receiver, Constant) else None
        formats = isinstance(text, str) and ":" in text and "{" in text
        if formats or _takes_tensors(call):
            for node, value in zip(call.node.args, call.arguments, strict=False):
                for output in _outputs_in(value):
                    yield Use(node, call.module, output, f"{call.name or call.module.text(call.node.func)}()")


def _takes_tensors(call: Call) -> bool:
    """Return whether the call computes with its arguments."""
    if call.name:
        return call.name.startswith(_FUNCTIONS) and call.name not in _TAKE_ANYTHING
    maker = call.receiver.call.name if isinstance(call.receiver, Result) else ""
    computes = maker.startswith(("tensorflow.keras.", "keras.", "torchmetrics.", "torch.nn."))
    return computes and call.method in ("", "apply_gradients", "update_state", "update")


def _outputs_in(value: Value, depth: int = 0) -> list[StepOutput]:
    """Return the outputs of a step in `value`, looking into lists and pairs."""
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


_NUMBERS = frozenset({"item", "tolist", "size", "numel", "dim"})
_FLAGS = {"output_hidden_states": "hidden_states", "output_attentions": "attentions"}


@check("SMP107")
def _reduced(context: Context) -> Iterator[Hit]:
    for use in tensor_uses(context.trace):
        if not all(_is_number(option) for option in options(use.output.of)):
            yield Hit(
                use.module,
                use.node,
                {
                    "how": use.how,
                    "step": use.output.call.module.text(use.output.call.node.func),
                    "text": use.module.text(use.node),
                },
            )


def _is_number(value: Value) -> bool:
    """Return whether the step returns a Python number, which the library returns as a plain list."""
    if isinstance(value, Constant):
        return True
    if isinstance(value, Result):
        return value.call.method in _NUMBERS or value.call.name in ("float", "int", "len", "round")
    return isinstance(value, Operation) and all(_is_number(operand) for operand in value.operands)


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
    for call in context.models():
        inner = [model for maker in makers(call.receiver) for model in origins(maker.argument("module", 0))]
        counts = {returned_values(model, "forward") for model in inner if isinstance(model, Instance)}
        returned = counts.pop() if len(counts) == 1 else 0
        if dropped := unused_values(call, returned):
            yield Hit(call.module, call.node, {"returned": returned, "dropped": dropped}, variant="dropped")


def _read(context: Context, here: Module, attribute: str) -> bool:
    """Return whether the file with the flag, or the script itself, reads the output. The files of models always do."""
    return any(
        any(node.attr == attribute for node in module.all(ast.Attribute))
        or any(node.value == attribute for node in module.all(ast.Constant))
        for module in context.trace.modules
        if module is here or module.entry
    )


def returned_values(model: Instance, method: str) -> int:
    """Return the values in the tuples that a method of a model returns; 0 if it returns something else."""
    function = model.cls.find(method)
    if not isinstance(function, Function) or isinstance(function.node, ast.Lambda):
        return 0
    returned = [node.value for node in ast.walk(function.node) if isinstance(node, ast.Return)]
    counts = {len(value.elts) if isinstance(value, ast.Tuple) else 0 for value in returned}
    return counts.pop() if len(counts) == 1 else 0


def unused_values(call: Call, returned: int) -> int:
    """Return the values of a call that the script drops: ``model(x)[0]``, ``loss, _ = model(x)``."""
    parent = call.module.parent(call.node)
    if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
        return max(returned - 1, 0)
    targets = parent.targets[0] if isinstance(parent, ast.Assign) and returned > 1 else None
    names = targets.elts if isinstance(targets, ast.Tuple) else ()
    return sum(isinstance(name, ast.Name) and name.id.startswith("_") for name in names)
