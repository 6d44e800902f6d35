"""Places where a script uses the output of a step as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.trace import Use
from smp_advisor.reading.values import Collection, Constant, Operation, Result, StepOutput, Value, options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call, Trace

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
