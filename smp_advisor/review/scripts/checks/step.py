"""The step function: the calls inside it, its arguments, and its output with one value per microbatch."""

from __future__ import annotations

import ast
import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import Use, exclusive
from smp_advisor.review.reading.values import (
    Collection,
    Constant,
    Instance,
    Operation,
    Result,
    StepOutput,
    Value,
    options,
)
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import (
    argument_node,
    constant,
    is_optimizer_call,
    is_wrapped_model,
    is_wrapped_optimizer,
    makers,
    mentions,
    origins,
    updates,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call, Trace


_UNBATCHED = {
    "torch": ("arange", "linspace", "logspace", "eye", "scalar_tensor", "range"),
    "tensorflow": ("range", "linspace", "eye", "linalg.eye"),
}
_LITERALS = ("torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "tensorflow.constant")
_TRIANGLES = ("torch.tril", "torch.triu", "tensorflow.linalg.band_part")
_FILLED = ("torch.ones", "torch.zeros", "torch.full", "torch.empty", "tensorflow.ones", "tensorflow.zeros")


@check("SMP105", "smp_v1")
def _sides_of_the_step(context: Context) -> Iterator[Hit]:
    yield from _updates_inside(context)
    degree = context.settings.pipeline_parallel_degree
    has_step = any(function.step is not None for function in context.trace.functions)
    partitioned = bool(context.trace.named("smp.partition", "smp.set_partition"))
    # TensorFlow scripts use the library for nothing else.
    cut = has_step or partitioned or context.libraries.smp_tensorflow
    if degree == 1 or (degree is None and not cut):
        return
    of_tensorflow = [
        call
        for call in context.trace.calls
        if not call.method and isinstance(call.receiver, Instance)
        if "smptf.DistributedModel" in call.receiver.cls.ancestors()
    ]
    for call in (*context.models(), *of_tensorflow):
        if call.step is None and not _without_wrapping(context, call):
            yield Hit(call.module, call.node, variant="forward")
    for call in context.trace.methods("backward"):
        if context.wrappings and call.step is None and call.reached and not _without_wrapping(context, call):
            own = call.receiver is not None and is_wrapped_model(call.receiver)
            if own or not call.arguments:
                yield Hit(call.module, call.node, variant="backward")


def _updates_inside(context: Context) -> Iterator[Hit]:
    """Yield the weights may change only after the gradients of all microbatches are complete."""
    for call, optimizer in updates(context.trace):
        if call.step is not None and (is_wrapped_optimizer(optimizer) or is_optimizer_call(optimizer)):
            yield Hit(call.module, call.node, variant="update")
    for call in context.trace.methods("apply_gradients"):
        if call.step is not None and call.step.step is not None and call.step.step.tensorflow:
            yield Hit(call.module, call.node, variant="update")


@check("SMP106", "smp_torch")
def _backward_of_model(context: Context) -> Iterator[Hit]:
    proper = [call for call in context.trace.methods("backward") if _is_models(call)]
    for call in context.trace.methods("backward"):
        if call.step is None or _is_models(call) or call.name:
            continue
        if any(backward.step is not None and _without_library(call, backward) for backward in proper):
            continue
        yield Hit(call.module, call.node, {"call": call.module.text(call.node)})
    for call in context.trace.named("torch.autograd.backward"):
        if call.step is not None:
            yield Hit(call.module, call.node, {"call": "torch.autograd.backward(...)"})


def _without_library(call: Call, with_library: Call) -> bool:
    """Whether `call` is for runs without the library and `with_library` for runs with it, in the same precision."""
    if (
        not call.functions
        or not with_library.functions
        or call.functions[-1].node is not with_library.functions[-1].node
    ):
        return False
    first, last = call.functions[-1].node.lineno, call.functions[-1].node.end_lineno or 0
    guards = [
        guard
        for guard in call.guards
        if first <= guard.test.lineno <= last
        and not mentions(guard.test, "fp16", "bf16", "amp", "half", "precision", "scale")
    ]
    return exclusive(dataclasses.replace(call, guards=tuple(guards)), with_library)


def _without_wrapping(context: Context, call: Call) -> bool:
    """Return whether the call is for runs that wrap no model."""
    return bool(context.wrappings) and all(exclusive(call, wrapping) for wrapping in context.wrappings)


def _is_models(call: Call) -> bool:
    """``model.backward(loss)`` instead of ``loss.backward()``."""
    if call.receiver is not None and is_wrapped_model(call.receiver):
        return True
    if not call.arguments or "gradient" in call.keywords:
        return False
    return not any(maker.receiver is not None for maker in makers(call.receiver))


def _unbatched(context: Context, *, tensorflow: bool) -> Iterator[Hit]:
    if context.settings.microbatches == 1:
        return
    for call in context.trace.calls:
        function = call.function
        if function is None or function.step is None or function.step.tensorflow != tensorflow or call.step is not None:
            continue
        names = function.step.non_split_inputs
        for name, value in call.bound.items():
            if names is None or name in names:
                continue
            shown = _without_batch(value) or _fixed_length(context, value)
            if shown:
                place = _argument_node(call, name) or call.node
                yield Hit(call.module, place, {"name": name, "value": shown})
        if names is None and any(_without_batch(value) for value in call.bound.values()):
            context.leave_open(call.module, call.node, "non_split_inputs of this step cannot be read (SMP112, SMP205).")


check("SMP112")(partial(_unbatched, tensorflow=False))
check("SMP205")(partial(_unbatched, tensorflow=True))


def _fixed_length(context: Context, value: Value) -> str:
    """A filled vector whose literal length is not a batch size in the script: one weight per class, for example."""
    sizes = [call.argument("batch_size", 1) for call in context.trace.by_name.get("torch.utils.data.DataLoader", [])]
    sizes += [call.arguments[0] for call in context.trace.methods("batch") if call.arguments]
    constants = [constant(size) for size in sizes]
    if not constants or not all(isinstance(size, int) for size in constants):
        return ""
    for origin in origins(value):
        shape = origin.call.arguments if isinstance(origin, Result) and origin.call.name in _FILLED else ()
        if len(shape) == 1 and isinstance(shape[0], Collection):
            shape = tuple(shape[0].items)
        length = constant(shape[0]) if len(shape) == 1 else None
        if not isinstance(length, int) or length in constants:
            return ""
    return "a vector of fixed length"


def _argument_node(call: Call, name: str) -> ast.expr | None:
    keyword = argument_node(call, name)
    if keyword is not None:
        return keyword
    if call.function is None or any(isinstance(argument, ast.Starred) for argument in call.node.args):
        return None
    names = call.function.positional[call.function.owner is not None :]
    position = names.index(name) if name in names else len(call.node.args)
    return call.node.args[position] if position < len(call.node.args) else None


def _without_batch(value: Value) -> str:
    """Return the reason why the tensor certainly has no batch dimension; empty if it may have one."""
    reasons = [_unbatched_tensor(origin) for origin in origins(value)]
    return reasons[0] if reasons and all(reasons) else ""


def _unbatched_tensor(value: Value) -> str:
    if not isinstance(value, Result):
        return ""
    call = value.call
    library, _, function = call.name.partition(".")
    if function in _UNBATCHED.get(library, ()):
        return f"{call.name}(...)"
    if call.name in _LITERALS and call.arguments:
        content = call.arguments[0]
        number = isinstance(constant(content), (int, float))
        listed = isinstance(content, Collection) and all(
            isinstance(item, Constant) and isinstance(item.value, (int, float)) for item in content.items
        )
        if number or (listed and isinstance(content, Collection) and content.items):
            return f"{call.name}({'a number' if number else 'a list of numbers'})"
    if call.name in _TRIANGLES and call.arguments and any(_is_square(origin) for origin in origins(call.arguments[0])):
        return f"{call.name}(...)"
    if _is_square(value):
        return f"{call.name}(n, n)"
    if call.method in ("bool", "int", "long") and call.receiver is not None:
        return _without_batch(call.receiver)
    return ""


def _is_square(value: Value) -> bool:
    """``torch.ones(n, n)``: a mask over positions, the same for every sample."""
    if not isinstance(value, Result) or value.call.name not in _FILLED:
        return False
    sizes = value.call.node.args
    if sizes and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    return len(sizes) == 2 and ast.dump(sizes[0]) == ast.dump(sizes[1])


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
