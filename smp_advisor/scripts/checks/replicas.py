"""Scripts that train with PyTorch's own data parallelism: their wrapped models, and the loops that train them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.values import External, Item, Result, Value, options
from smp_advisor.scripts.checks.sharding import FSDP, in_place, inside, same
from smp_advisor.scripts.queries import mentions, origins

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call
    from smp_advisor.scripts.context import Context

__all__ = [
    "ACCELERATORS",
    "REPLICATING",
    "by_framework",
    "forwards",
    "parallel_wraps",
    "training_loops",
    "without_gradients",
    "wrapped_by",
]

REPLICATING = ("torch.nn.parallel.DistributedDataParallel",)
ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")
_FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod", "ignite", "composer")
_PASSIVE = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")


def parallel_wraps(context: Context) -> list[Call]:
    """Reached calls of DDP and FSDP, in order; none if a framework trains."""
    if context.libraries.smp_v1 or by_framework(context):
        return []
    return [call for call in context.trace.named(*REPLICATING, *FSDP) if call.reached]


def by_framework(context: Context) -> bool:
    """Whether a framework, which wraps models and divides data, may train."""
    return context.trainer or bool(context.trace.imported(*_FRAMEWORKS))


def training_loops(context: Context) -> set[ast.AST]:
    """Loops with a backward pass that running the script reaches."""
    return {loop for call in context.trace.methods("backward") if call.reached for loop in call.loops}


def forwards(context: Context) -> Iterator[Call]:
    """Reached calls of objects inside of a training loop, with gradients."""
    innermost = {call.loops[-1] for call in context.trace.methods("backward") if call.reached and call.loops}
    for call in context.trace.calls:
        runs = call.reached and call.loops and call.loops[-1] in innermost
        if runs and not call.method and call.receiver is not None and not without_gradients(call):
            yield call


def without_gradients(call: Call) -> bool:
    """Whether the call is in a block without gradients."""
    values = [option for context in call.contexts for option in options(context)]
    names = [option.call.name for option in values if isinstance(option, Result)]
    names += [option.path for option in values if isinstance(option, External)]
    decorators = [node for function in call.functions for node in getattr(function.node, "decorator_list", [])]
    decorated = any(mentions(node, "no_grad", "inference_mode") for node in decorators)
    return decorated or any(name in _PASSIVE for name in names)


def wrapped_by(value: Value | None, wraps: list[Call]) -> Call | None:
    """The call whose result `value` certainly is, also without the object that holds it."""
    for model in inside(value) if value is not None else ():
        owner = model.owner if isinstance(model, Item) else model
        for wrap in wraps:
            if isinstance(owner, Result) and owner.call is wrap:
                return wrap
            if in_place(wrap) and any(same(owner, origin) for origin in origins(wrap.argument("module", 0))):
                return wrap
    return None
