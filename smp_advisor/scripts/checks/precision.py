"""Half precision, gradient clipping and accumulation."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import Edit, add_keyword, replace
from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import Constant, External, Instance, Result, options
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.names import is_scheduler
from smp_advisor.scripts.queries import (
    argument_node,
    constant,
    guarded_by,
    is_wrapped_optimizer,
    mentions,
    origins,
    updates,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call
    from smp_advisor.reading.values import Value

_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
_SCALES = ("static_loss_scale", "dynamic_loss_scale")


@check("SMP118", "smp_torch", needs="fp16")
def _half_precision(context: Context) -> Iterator[Hit]:
    if context.trainer:
        return
    if _own_half_precision(context):
        return
    created = context.trace.named("smp.model_creation")
    without = [call for call in created if not call.gives("dtype", 1) or _full_precision(call.argument("dtype", 1))]
    for call in without or ([] if created else context.wrappings[:1]):
        yield Hit(call.module, call.node, variant="dtype")
    for call in context.trace.named("smp.DistributedOptimizer"):
        if not any(call.gives(name, position) for position, name in enumerate(_SCALES, 1)) or _scales_by_one(call):
            scales = {keyword.arg for keyword in call.node.keywords} & set(_SCALES)
            text = "None, dynamic_loss_scale=True"
            edits = [] if scales else [add_keyword(call.module, call.node, "static_loss_scale", text)]
            yield Hit(call.module, call.node, {}, edits, variant="loss scale")


def _full_precision(dtype: Value | None) -> bool:
    """Whether the model is certainly created in a type other than half precision."""
    dtypes = [option.path for option in options(dtype) if isinstance(option, External)]
    return bool(dtypes) and all(path in ("torch.float32", "torch.float", "torch.bfloat16") for path in dtypes)


def _scales_by_one(call: Call) -> bool:
    """Whether the loss scales are equivalent to none."""
    static, dynamic = call.argument("static_loss_scale", 1), call.argument("dynamic_loss_scale", 2)
    is_one = isinstance(static, Constant) and static.value in (1, 1.0)
    off = dynamic is None or (isinstance(dynamic, Constant) and dynamic.value is False)
    return not call.unpacks and off and (is_one or (static is None and dynamic is not None))


def _own_half_precision(context: Context) -> bool:
    """Whether the script casts and scales with its own classes, as scripts for early versions do."""
    for call in (*context.wrappings, *context.trace.named("smp.DistributedOptimizer")):
        for source in (inner for argument in call.arguments[:1] for inner in origins(argument)):
            class_name = getattr(source.cls.node, "name", "") if isinstance(source, Instance) else ""
            class_name = class_name or (source.call.name.rpartition(".")[2] if isinstance(source, Result) else "")
            if "fp16" in class_name.lower() or "half" in class_name.lower():
                context.leave_open(
                    call.module, call.node, f"{class_name} is the script's own form of half precision (SMP118)."
                )
                return True
    return False


@check("SMP119", "smp_torch", needs="fp16")
def _inner_optimizer(context: Context) -> Iterator[Hit]:
    for call in context.trace.calls:
        if is_scheduler(call.name):
            optimizer = call.argument("optimizer", 0)
            if optimizer is not None and all(is_wrapped_optimizer(option) for option in options(optimizer)):
                place = argument_node(call, "optimizer", 0)
                has_name = isinstance(place, (ast.Name, ast.Attribute))
                edits = (
                    [replace(call.module, place, f"{call.module.text(place)}.optimizer")] if place and has_name else []
                )
                yield Hit(call.module, call.node, {}, edits, variant="scheduler")
        elif call.name in _CLIPS and context.wrappings and not _for_other_precision(context, call):
            yield Hit(call.module, call.node, {}, _clip_masters(context, call), variant="clipping")


def _for_other_precision(context: Context, call: Call) -> bool:
    """Whether the call is in the branch for another precision."""
    for guard in call.guards:
        half = mentions(guard.test, "fp16", "half")
        # `if fp16 and bf16: raise` is no condition on either of them.
        if half and not guard.holds and not isinstance(guard.test, ast.BoolOp):
            return True
        if not half and guard.holds and mentions(guard.test, "bf16", "amp"):
            return True
    return any(exclusive(call, clip) for clip in context.trace.methods("clip_master_grads"))


def _clip_masters(context: Context, call: Call) -> list[Edit]:
    """The change to ``optimizer.clip_master_grads(norm)``, with the local name of the wrapper."""
    norm = argument_node(call, "max_norm", 1)
    extra = [keyword for keyword in call.node.keywords if keyword.arg not in ("max_norm", "parameters")]
    if norm is None or extra or len(call.node.args) > 2 or not call.discarded:
        return []
    around = call.functions[-1:] or (None,)
    for step in context.trace.methods("step"):
        same = (step.functions[-1:] or (None,))[0] is around[0] and step.module is call.module
        receiver = step.node.func.value if isinstance(step.node.func, ast.Attribute) else None
        if (
            same
            and isinstance(receiver, ast.Name)
            and step.receiver is not None
            and is_wrapped_optimizer(step.receiver)
        ):
            text = f"{receiver.id}.clip_master_grads({call.module.text(norm)})"
            return [replace(call.module, call.node, text)]
    return []


@check("SMP120", "smp_torch", needs="sharded")
def _clipping_under_sharding(context: Context) -> Iterator[Hit]:
    clips = [
        *context.trace.named(*_CLIPS, "torch.nn.utils.clip_grad_value_"),
        *context.trace.methods("clip_master_grads"),
    ]
    for call in clips:
        spared = any(not guard.holds for guard in guarded_by(call, "sharded", "sdp"))
        if context.settings.bf16:
            spared = spared or any(guard.holds for guard in guarded_by(call, "fp16"))
        if not spared:
            yield Hit(call.module, call.node, {"call": call.module.text(call.node.func)})


@check("SMP121", "smp_torch", needs="sharded")
def _accumulation_under_sharding(context: Context) -> Iterator[Hit]:
    if not _accumulates(context):
        return
    batches = _batches_per_update(context)
    for call in context.wrappings:
        passes = call.argument("backward_passes_per_step", 4)
        number = constant(passes)
        if (passes is None and not call.unpacks) or (isinstance(passes, Constant) and number == 1):
            yield Hit(call.module, call.node, variant="missing")
        elif isinstance(number, int) and len(batches) == 1 and batches != {number}:
            yield Hit(call.module, call.node, {"passes": number, "batches": min(batches)}, variant="other number")


def _batches_per_update(context: Context) -> set[int]:
    """Literal numbers of batches after which the optimizer steps: ``if step % 4 == 0``."""
    parts = (
        part
        for call, optimizer in updates(context.trace)
        if is_wrapped_optimizer(optimizer)
        for guard in call.guards
        for part in ast.walk(guard.test)
    )
    divisors = (part.right for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod))
    return {node.value for node in divisors if isinstance(node, ast.Constant) and isinstance(node.value, int)}


def _accumulates(context: Context) -> bool:
    """Whether the optimizer steps once per several batches."""
    backwards = [call for call in context.trace.methods("backward") if call.reached and call.loops]
    for call, optimizer in updates(context.trace):
        if not is_wrapped_optimizer(optimizer) or not call.loops:
            continue
        depth = len(call.loops)
        if any(len(backward.loops) > depth and backward.loops[:depth] == call.loops for backward in backwards):
            return True
        for guard in call.guards:
            counts = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in ast.walk(guard.test))
            if counts or mentions(guard.test, "accumulation"):
                return True
    return False
