"""SMP v2: PyTorch's FSDP with the library's parallelism."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import Argument, Mapping, Result, Value, options
from smp_advisor.review.scripts.checks.parallel import REPLICATING
from smp_advisor.review.scripts.checks.sharding import FSDP, in_place
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import constant, is_optimizer, is_plain_model, mentions, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call

_V1_PARAMETERS = ("microbatches", "partitions", "pipeline_parallel_degree", "prescaled_batch", "active_microbatches")
_REPLICATING = (*REPLICATING, "torch.nn.DataParallel")
_SWITCHES = ("smp", "tsm", "parallel", "degree", "tp_", "transform", "sagemaker")
"""Words in conditions that decide whether a script uses the library, or what a process does."""
_ANY_TIME = ("tsm.init", "tsm.logger", "tsm.utils", "tsm.distributed.fsdp.checkpoint")
"""Parts of the library that need no initialization."""


@check("SMP301", "smp_v2")
def _initialized(context: Context) -> Iterator[Hit]:
    calls = [call for call in context.trace.each("tsm.") if call.reached and not call.name.startswith(_ANY_TIME)]
    starts = [call for call in context.trace.named("tsm.init") if call.reached]
    wraps = [call for call in context.trace.named(*FSDP) if call.reached]
    first = min((*calls[:1], *wraps[:1]), key=lambda call: call.order, default=None)
    if starts and first is not None and first.order < starts[0].order:
        yield Hit(first.module, first.node)
    elif not starts:
        for call in (calls or wraps)[:1]:
            yield Hit(call.module, call.node)


@check("SMP302")
def _transformed(context: Context) -> Iterator[Hit]:
    settings = context.settings
    degrees = {
        "tensor": settings.tensor_parallel_degree,
        "context": settings.context_parallel_degree,
        "expert": settings.expert_parallel_degree,
    }
    used = [name for name, degree in degrees.items() if (degree or 1) > 1]
    if not context.libraries.smp_v2 or not used:
        return
    wraps = [call for call in context.trace.named(*FSDP) if call.reached]
    transforms = list(context.trace.named("tsm.transform", "tsm.transform.transform"))
    if wraps and not transforms:
        yield Hit(wraps[0].module, wraps[0].node, {"parallelism": used[0]}, variant="missing")
    for call in wraps if transforms else ():
        models = [inner for origin in origins(call.argument("module", 0)) for inner in _inside_wrappers(origin)]
        if call.order > transforms[0].order and models and all(map(is_plain_model, models)):
            yield Hit(call.module, call.node, variant="unused result")
            return
    yield from _branches_without(context, transforms)
    for call in transforms:
        if wraps and call.reached and call.order > wraps[0].order and not exclusive(call, wraps[0]):
            yield Hit(call.module, call.node, variant="late")


def _branches_without(context: Context, transforms: list[Call]) -> Iterator[Hit]:
    """Yield the other branch of a condition that transforms the model, unless it turns the library off."""
    for module in context.trace.modules:
        inside: set[ast.AST] = {call.node for call in transforms if call.module is module}
        if inside:  # also calls of the script's own functions that transform
            ways = {function.node for call in transforms for function in call.functions}
            inside |= {call.node for call in context.trace.calls if call.function and call.function.node in ways}
        for node in module.all(ast.If) if inside else ():
            if not node.orelse or mentions(node.test, *_SWITCHES):
                continue
            sides = [
                any(part in inside for statement in side for part in ast.walk(statement))
                for side in (node.body, node.orelse)
            ]
            if sides[0] != sides[1]:
                left = node.orelse[0] if sides[0] else node.body[0]
                yield Hit(module, left, variant="branch")


@check("SMP303", "smp_v2")
def _sharded_before_optimizer(context: Context) -> Iterator[Hit]:
    wraps = [call for call in context.trace.named(*FSDP) if call.reached]
    backwards = [call for call in context.trace.methods("backward") if call.reached and not call.arguments]
    forwards = [
        call
        for call in context.trace.calls
        if call.reached and not call.method and call.receiver is not None and _is_plain(call)
    ]
    if not wraps:
        for call in context.trace.named(*_REPLICATING) if backwards else ():
            yield Hit(call.module, call.node, {"wrapper": call.name.rpartition(".")[2]}, variant="other wrapper")
            return
        if backwards and forwards:
            call = forwards[0]
            yield Hit(call.module, call.node, variant="missing")
        return
    for call in forwards if backwards else ():
        # The called model is the one passed to FSDP. ``fully_shard`` changes it in place.
        wrapped = [wrap for wrap in wraps if not in_place(wrap) and wrap.order < call.order]
        sharded = [origin for wrap in wrapped for value in wrap.arguments[:1] for origin in origins(value)]
        called = [inner for origin in origins(call.receiver) for inner in _inside_wrappers(origin)]
        if called and all(any(model is original for original in sharded) for model in called):
            yield Hit(call.module, call.node, variant="unused result")
            break
    for call in context.trace.calls:
        if is_optimizer(call.name) and call.reached and call.order < wraps[0].order and not exclusive(call, wraps[0]):
            yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]}, variant="optimizer")


def _is_plain(call: Call) -> bool:
    models = [inner for origin in origins(call.receiver) for inner in _inside_wrappers(origin)]
    transformed = all(isinstance(m, Result) and m.call.name.startswith("tsm.transform") for m in models)
    return bool(models) and (transformed or all(map(is_plain_model, models)))


def _inside_wrappers(value: Value) -> list[Value]:
    """Return the models inside ``offload_wrapper`` and ``checkpoint_wrapper``."""
    if isinstance(value, Result) and value.call.name.endswith(("offload_wrapper", "checkpoint_wrapper")):
        return [inner for argument in value.call.arguments[:1] for inner in origins(argument)]
    return [value]


@check("SMP304", "smp_v2", needs="tensor_parallel")
def _backend(context: Context) -> Iterator[Hit]:
    replicates = context.settings.hybrid_shard_degree == 1
    for call in context.trace.named("torch.distributed.init_process_group") if replicates else ():
        backend = call.argument("backend", 0)
        # The value unless the job sets the option.
        chosen = backend.default if isinstance(backend, Argument) else backend
        if constant(chosen) == "smddp":
            yield Hit(call.module, call.node)


@check("SMP305", "smp_v2")
def _names_of_v1(context: Context) -> Iterator[Hit]:
    for module, node, path in context.trace.imported("smdistributed.modelparallel"):
        yield Hit(module, node, {"module": path}, variant="import")
    for call in context.trace.named("tsm.init"):
        for option in options(call.argument("config", 0)):
            for name in option.values() if isinstance(option, Mapping) else ():
                if name in _V1_PARAMETERS and name != "pipeline_parallel_degree":
                    yield Hit(call.module, call.node, {"parameter": name}, variant="parameter")


@check("SMP306", "smp_v2")
def _offloading(context: Context) -> Iterator[Hit]:
    wraps = [call for call in context.trace.named(*FSDP) if call.reached]
    if not context.settings.sm_activation_offloading or not wraps:
        return
    names = {node.id for module in context.trace.modules for node in module.all(ast.Name)}
    names |= {node.attr for module in context.trace.modules for node in module.all(ast.Attribute)}
    checkpoints = {"checkpoint_wrapper", "apply_activation_checkpointing", "gradient_checkpointing_enable"}
    missing = [] if "offload_wrapper" in names else ["offload_wrapper"]
    missing += ["activation checkpointing"] if names.isdisjoint(checkpoints) else []
    if missing:
        yield Hit(wraps[0].module, wraps[0].node, {"missing": " or ".join(missing)})
