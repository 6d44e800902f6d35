"""The optimizer of SMP v1, half precision, gradient clipping and accumulation."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING, Any

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import (
    Constant,
    External,
    Instance,
    Result,
    options,
)
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import (
    constant,
    derivation,
    guarded_by,
    is_optimizer,
    is_optimizer_call,
    is_scheduler,
    is_wrapped_optimizer,
    makers,
    mentions,
    origins,
    updates,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call


_PARAMETERS = ("parameters", "named_parameters")
_CHECKPOINTING = ("save_checkpoint", "resume_from_checkpoint", "load_state_dict", "local_state_dict")


@check("SMP103", "smp_torch")
def _optimizer_wrapped(context: Context) -> Iterator[Hit]:
    if context.trainer or not (context.wrappings or context.trace.named("smp.init")):
        return
    reported: set[ast.Call] = set()
    wrapped = {step.node for step, stepped in updates(context.trace) if is_wrapped_optimizer(stepped)}
    for step, stepped in updates(context.trace):
        if not step.reached or not is_optimizer_call(stepped):
            continue
        for call in makers(stepped):
            wrappings = context.trace.named("smp.DistributedOptimizer")
            elsewhere = bool(wrappings) and all(exclusive(step, wrapping) for wrapping in wrappings)
            # If the step also gets the wrapped optimizer, the plain one is for runs without the library.
            if call.node not in reported and not elsewhere and step.node not in wrapped:
                reported.add(call.node)
                yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]})
    # A value that is not visible may be an optimizer instead of a scheduler.
    candidates = [origin for _, stepped in updates(context.trace) for origin in origins(stepped)]
    if not reported and not any(
        is_optimizer(candidate.call.name) or is_wrapped_optimizer(candidate)
        if isinstance(candidate, Result)
        else not isinstance(candidate, Instance)
        for candidate in candidates
    ):
        for call in _handed_on(context):
            yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]})


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
        owners = [
            origins(part.call.receiver)
            for value in call.arguments[:1]
            for part in derivation(value)
            if isinstance(part, Result) and part.call.method in _PARAMETERS
        ]
        if early or any(len(models) == 1 and models[0] is model for models in owners for model in plain):
            yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]})


@check("SMP128", "smp_torch", needs="tensor_parallel")
def _parameters_once(context: Context) -> Iterator[Hit]:
    if not context.trace.methods(*_CHECKPOINTING):
        return
    for call in context.trace.calls:
        if is_optimizer(call.name) and call.node.args and _repeats(call, call.node.args[0]):
            yield Hit(call.module, call.node)


def _repeats(optimizer: Call, parameters: ast.expr) -> bool:
    """Whether the list certainly contains parameters more than once: of a module and its parent, or of all modules."""
    around: ast.AST = optimizer.functions[-1].node if optimizer.functions else optimizer.module.tree
    expressions, name = [parameters], getattr(parameters, "id", "")
    for node in ast.walk(around) if name else ():
        # total = ..., total += ..., total.extend(...)
        targets: list[Any] = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(node, ast.Call) and _is_method(node, "extend") and node.args:
            targets, value = [getattr(node.func, "value", None)], node.args[0]
        if isinstance(value, ast.expr) and any(getattr(target, "id", "") == name for target in targets):
            expressions.append(value)
    parts = [part for expression in expressions for part in ast.walk(expression)]
    if any(isinstance(part, ast.comprehension) and part.ifs for part in parts):
        return False
    if any(isinstance(part, ast.keyword) and part.arg == "remove_duplicate" for part in parts):
        return True
    lists = [part for part in parts if isinstance(part, ast.Call) and _is_method(part, "parameters")]
    owners = sorted(ast.unparse(part.func.value) for part in lists if isinstance(part.func, ast.Attribute))
    for part in lists:
        # Each module of a loop over all modules has the parameters of those in it.
        loops, inner = list[ast.expr](), optimizer.module.parent(part)
        while inner is not None and inner is not around and not isinstance(inner, ast.If):
            loops += [inner.iter] if isinstance(inner, ast.For) else []
            loops += [generator.iter for generator in getattr(inner, "generators", ())]
            inner = optimizer.module.parent(inner)
        everywhere = not part.keywords and not isinstance(inner, ast.If)
        if everywhere and any(_is_method(loop, "modules", "named_modules") for loop in loops):
            return True
    return any(second == first or second.startswith(f"{first}.") for first, second in itertools.pairwise(owners))


def _is_method(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
_FULL = {"torch.float32", "torch.float", "torch.bfloat16"}
_SCALES = ("static_loss_scale", "dynamic_loss_scale")


@check("SMP118", "smp_torch", needs="fp16")
def _half_precision(context: Context) -> Iterator[Hit]:
    if context.trainer or _own_half_precision(context):
        return
    created = context.trace.named("smp.model_creation")
    without = []
    for call in created:
        dtypes = [option.path for option in options(call.argument("dtype", 1)) if isinstance(option, External)]
        if not call.gives("dtype", 1) or (dtypes and set(dtypes) <= _FULL):
            without.append(call)
    for call in without or ([] if created else context.wrappings[:1]):
        yield Hit(call.module, call.node, variant="dtype")
    for call in context.trace.named("smp.DistributedOptimizer"):
        if not any(call.gives(name, position) for position, name in enumerate(_SCALES, 1)) or _scales_by_one(call):
            yield Hit(call.module, call.node, variant="loss scale")


def _scales_by_one(call: Call) -> bool:
    """Return whether the loss scales are equivalent to none."""
    static, dynamic = call.argument("static_loss_scale", 1), call.argument("dynamic_loss_scale", 2)
    is_one = isinstance(static, Constant) and static.value in (1, 1.0)
    off = dynamic is None or (isinstance(dynamic, Constant) and dynamic.value is False)
    return not call.unpacks and off and (is_one or (static is None and dynamic is not None))


def _own_half_precision(context: Context) -> bool:
    """Return whether the script casts and scales with its own classes, as scripts for early versions do."""
    for call in (*context.wrappings, *context.trace.named("smp.DistributedOptimizer")):
        for source in (inner for argument in call.arguments[:1] for inner in origins(argument)):
            class_name = getattr(source.cls.node, "name", "") if isinstance(source, Instance) else ""
            class_name = class_name or (source.call.name.rpartition(".")[2] if isinstance(source, Result) else "")
            if "fp16" in class_name.lower() or "half" in class_name.lower():
                what = f"{class_name} is the script's own form of half precision (SMP118)."
                context.leave_open(call.module, call.node, what)
                return True
    return False


@check("SMP119", "smp_torch", needs="fp16")
def _inner_optimizer(context: Context) -> Iterator[Hit]:
    for call in context.trace.calls:
        if is_scheduler(call.name):
            optimizer = call.argument("optimizer", 0)
            if optimizer is not None and all(is_wrapped_optimizer(option) for option in options(optimizer)):
                yield Hit(call.module, call.node, variant="scheduler")
        elif call.name in _CLIPS and context.wrappings and not _for_other_precision(context, call):
            yield Hit(call.module, call.node, variant="clipping")


def _for_other_precision(context: Context, call: Call) -> bool:
    """Return whether the call is in the branch for another precision."""
    for guard in call.guards:
        half = mentions(guard.test, "fp16", "half")
        # `if fp16 and bf16: raise` is no condition on either of them.
        if half and not guard.holds and not isinstance(guard.test, ast.BoolOp):
            return True
        if not half and guard.holds and mentions(guard.test, "bf16", "amp"):
            return True
    return any(exclusive(call, clip) for clip in context.trace.methods("clip_master_grads"))


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
    # Literal numbers of batches after which the optimizer steps: ``if step % 4 == 0``.
    batches = {
        part.right.value
        for call, optimizer in updates(context.trace)
        if is_wrapped_optimizer(optimizer)
        for guard in call.guards
        for part in ast.walk(guard.test)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
        if isinstance(part.right, ast.Constant) and isinstance(part.right.value, int)
    }
    for call in context.wrappings:
        passes = call.argument("backward_passes_per_step", 4)
        number = constant(passes)
        if (passes is None and not call.unpacks) or (isinstance(passes, Constant) and number == 1):
            yield Hit(call.module, call.node, variant="missing")
        elif isinstance(number, int) and len(batches) == 1 and batches != {number}:
            yield Hit(call.module, call.node, {"passes": number, "batches": min(batches)}, variant="other number")


def _accumulates(context: Context) -> bool:
    """Return whether the optimizer steps once per several batches."""
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
