"""Accumulation under FSDP, by the script or a framework: reduced with every batch, or unsharded on every GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import (
    Result,
    options,
)
from smp_advisor.review.scripts.checks.fsdp import adapters, mixes
from smp_advisor.review.scripts.checks.parallel import wrapped_by
from smp_advisor.review.scripts.checks.sharding import in_place, may_offload, running, sharding_calls
from smp_advisor.review.scripts.conditions import Conditions, Reaching, option_of_batches
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import mentions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call


_OURS = ("fsdp", "fullysharded", "fully_shard")
_OTHERS = ("ddp", "distributeddataparallel", "deepspeed")


def around_backward(context: Context, call: Call) -> bool:
    """Return whether gradients are computed in its block. They are not if all visible backward passes are outside."""
    inside = [
        inner
        for inner in context.trace.calls
        if any(
            isinstance(option, Result) and option.call is call for block in inner.contexts for option in options(block)
        )
    ]
    trains = any(inner.reached for inner in context.trace.methods("backward"))
    return not inside or not trains or any(inner.method == "backward" for inner in inside)


def elsewhere(call: Call) -> bool:
    """Return whether a condition limits the call to models with another wrapper: ``if isinstance(model, DDP)``."""
    return any(
        mentions(guard.test, *(_OTHERS if guard.holds is not isinstance(guard.test, ast.UnaryOp) else _OURS))
        for guard in call.guards
    )


_LATER = "set_requires_gradient_sync"
_REPLICATE = ("torch.distributed._composable.replicate", "torch.distributed._composable.replicate.replicate")
"""DDP that changes a model in place. It has a method of the same name."""


@check("SMP308")
def _whole_gradients(context: Context) -> Iterator[Hit]:
    never, option = option_of_batches(context)
    if never:
        return
    for call in (*_of_models(context), *_in_place(context)):
        needed = f"with --{option} above 1" if option else ""
        yield Hit(call.module, call.node, {"call": call.method or "no_sync"}, variant="call", needed=needed)


def _of_models(context: Context) -> Iterator[Call]:
    """``no_sync`` of a model that FSDP returned."""
    wraps, runs = sharding_calls(context), running(context)
    for call in context.trace.methods("no_sync") if wraps else ():
        wrap = wrapped_by(call.receiver, wraps)
        if wrap is None or in_place(wrap) or not runs(call) or exclusive(call, wrap) or elsewhere(call):
            continue
        if may_offload(wrap.argument("cpu_offload", 3)):
            continue
        if around_backward(context, call) and not _is_light(context, wrap, adapters(context, wrap)):
            yield call


def _in_place(context: Context) -> Iterator[Call]:
    """Yield the counterpart of ``no_sync`` for a model that ``fully_shard`` has changed."""
    wraps, runs = [wrap for wrap in sharding_calls(context) if in_place(wrap)], running(context)
    replicating = context.trace.named(*_REPLICATE)
    for call in context.trace.methods(_LATER) if wraps else ():
        argument = call.argument("requires_gradient_sync", 0)
        wrap = wrapped_by(call.receiver, wraps)
        if argument is None or not runs(call) or elsewhere(call) or (replicating and wrap is None):
            continue
        reduces = Conditions(context.settings).truth(argument) is True
        apart = all(exclusive(call, sharding) for sharding in wraps)
        if not reduces and not apart and not _is_light(context, wraps[-1], adapters(context)):
            yield call


def _is_light(context: Context, wrap: Call, adapting: list[Call]) -> bool:
    """Return whether only adapters have gradients: their unsharded gradients are small."""
    if not adapting:
        return False
    reaching = Reaching(context)
    places = [Hit(adapter.module, adapter.node) for adapter in adapting]
    sure = any(not reaching.never(place) and not reaching.needed(place) for place in places)
    return sure and not mixes(context, wrap)
