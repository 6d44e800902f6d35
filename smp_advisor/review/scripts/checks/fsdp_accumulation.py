"""Accumulation under FSDP, by the script or a framework: reduced with every batch, or unsharded on every GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import (
    Argument,
    Constant,
    Function,
    Mapping,
    Result,
    Unknown,
    Value,
    options,
)
from smp_advisor.review.scripts.checks.fsdp import STRATEGY, adapters, mixes
from smp_advisor.review.scripts.checks.parallel import ACCELERATORS, wrapped_by
from smp_advisor.review.scripts.checks.sharding import in_place, is_whole, may_offload, running, sharding_calls
from smp_advisor.review.scripts.conditions import Conditions, Reaching, is_one, option_of_batches
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import constant, makers, mentions, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call


_OURS = ("fsdp", "fullysharded", "fully_shard")
_OTHERS = ("ddp", "distributeddataparallel", "deepspeed")
_Delay = tuple["Call", dict[str, object]]
"""A call that delays the reduction of gradients, with `call`, or `framework` and its `batches` or their `option`."""


def batches(context: Context, count: Value | None) -> dict[str, object]:
    """Return the `batches` of a step, or the `option` that sets them; empty if it is one batch or unknown."""
    for option in options(count):
        number = Conditions(context.settings, defaults=True).known(option)
        if isinstance(number, int) and number > 1:
            return {"batches": f"{number} batches"}
        if isinstance(option, Argument) and is_one(number) and not is_one(Conditions(context.settings).known(option)):
            return {"option": option.name, "batches": "several batches"}
    return {}


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
    return any(_excludes(guard.test, holds=guard.holds) for guard in call.guards)


def _excludes(test: ast.expr, *, holds: bool) -> bool:
    """Return whether `test` excludes FSDP if its value is `holds`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _excludes(test.operand, holds=not holds)
    if isinstance(test, ast.BoolOp):
        parts = [_excludes(part, holds=holds) for part in test.values]
        all_hold_or_none = isinstance(test.op, ast.And) is holds
        return any(parts) if all_hold_or_none else all(parts)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.NotEq, ast.IsNot, ast.NotIn)):
        holds = not holds
    if mentions(test, *_OURS):
        return not holds
    return holds and mentions(test, *_OTHERS)


def _by_fabric(context: Context) -> Iterator[_Delay]:
    """``no_backward_sync`` of a Fabric with an FSDP strategy."""
    runs = running(context)
    fabrics = [
        call
        for call in context.trace.calls
        if call.name.endswith(".Fabric") and runs(call)
        if any(map(_is_sharded_strategy, options(call.argument("strategy", 1))))
    ]
    # No other code calls the functions that `launch` calls.
    launched = any(isinstance(value, Function) for call in context.trace.methods("launch") for value in call.arguments)
    strategies = [maker for maker in context.trace.calls if maker.name.endswith(STRATEGY)]
    # Unsharded gradients of adapters are small, unless they share units with frozen parameters.
    light = adapters(context) and not any(mixes(context, strategy) for strategy in strategies)
    for call in context.trace.methods("no_backward_sync") if fabrics and not light else ():
        enabled = call.argument("enabled", 1)
        off = enabled is not None and Conditions(context.settings).truth(enabled) is False
        of_fabric = runs(call) and any(maker in fabrics for maker in makers(call.receiver))
        of_fabric |= (
            launched and not call.reached and any(isinstance(owner, Unknown) for owner in origins(call.receiver))
        )
        if of_fabric and not off and not elsewhere(call):
            yield call, {"call": "no_backward_sync()"}


def _is_sharded_strategy(value: Value) -> bool:
    if isinstance(value, Result):
        sharded = value.call.name.endswith((STRATEGY, ".ModelParallelStrategy"))
        return sharded and _leaves_it_open(value)
    return str(constant(value)) == "fsdp"


def _by_accelerate(context: Context) -> Iterator[_Delay]:
    """Accelerate with FSDP: ``accumulate`` with more than one batch, and ``no_sync`` itself."""
    runs = running(context)
    for accelerator in context.trace.named(*ACCELERATORS):
        if not runs(accelerator) or not _accelerates_fsdp(context, accelerator) or _trains_adapter(context):
            continue
        count = _unsynced_batches(context, accelerator)
        accumulates = context.trace.methods("accumulate")
        if count and any(runs(call) and accelerator in makers(call.receiver) for call in accumulates):
            yield accelerator, {"framework": "Accelerate", **count}
        for call in context.trace.methods("no_sync"):
            own = runs(call) and accelerator in makers(call.receiver)
            if own and not elsewhere(call) and around_backward(context, call):
                yield call, {"call": "no_sync()"}


def _accelerates_fsdp(context: Context, accelerator: Call) -> bool:
    """Whether an Accelerator shards: it has the FSDP plugin, or the script is checked for a library that shards."""
    if accelerator.argument("deepspeed_plugin") is not None:
        return False
    plugin = accelerator.argument("fsdp_plugin")
    plugins = [origin for origin in origins(plugin) if not isinstance(origin, Constant)]
    if not plugins:
        return context.libraries.fsdp or context.libraries.smp_v2
    return any(not isinstance(origin, Result) or _leaves_it_open(origin) for origin in plugins)


def _leaves_it_open(sharding: Result) -> bool:
    """Whether gradients are sharded and may be reduced with every batch. They may not if parameters are offloaded."""
    call = sharding.call
    return not is_whole(call.argument("sharding_strategy")) and not may_offload(call.argument("cpu_offload"))


def _unsynced_batches(context: Context, accelerator: Call) -> dict[str, object]:
    """Batches per step that an Accelerator does not reduce one by one; empty if it reduces each, or has one."""
    plugin = accelerator.argument("gradient_accumulation_plugin")
    if plugin is None:
        return batches(context, accelerator.argument("gradient_accumulation_steps"))
    for maker in makers(plugin):
        if maker.name.endswith("GradientAccumulationPlugin") and not maker.unpacks:
            every_batch = maker.argument("sync_each_batch", 3)
            if every_batch is None or Conditions(context.settings, defaults=True).truth(every_batch) is False:
                return batches(context, maker.argument("num_steps", 0))
    return {}


def _by_trainer(context: Context) -> Iterator[_Delay]:
    """TrainingArguments with FSDP and several batches per step, written in the script or passed by the job."""
    runs = running(context)
    for call in context.trace.calls if not _trains_adapter(context) else ():
        if not runs(call) or call.unpacks or not call.name.startswith(("transformers.", "trl.")):
            continue
        count: dict[str, object] = {}
        if call.argument("gradient_accumulation_steps") is not None:
            count = _of_arguments(context, call)
        elif call.name.endswith(("HfArgumentParser", "TrlParser")):
            count = _of_job(context)
        if count:
            yield call, {"framework": "Trainer", **count}


def _of_arguments(context: Context, call: Call) -> dict[str, object]:
    """Return the batches per step of TrainingArguments with literal values."""
    sharding, config, fsdp_config = (call.argument(name) for name in ("fsdp", "accelerator_config", "fsdp_config"))
    # ``fsdp="full_shard auto_wrap"``, a list of such words, or True.
    words = [Conditions(context.settings, defaults=True).known(option) for option in options(sharding)]
    words += [constant(item) for option in options(sharding) for item in getattr(option, "items", ())]
    shards = any(word is True or (isinstance(word, str) and _names_sharding(word)) for word in words)
    shards = shards or (sharding is None and context.libraries.fsdp)
    settings = [option for option in options(fsdp_config) if isinstance(option, Mapping)]
    excluded = any({"xla", "cpu_offload"} & set(table.entries) for table in settings)
    reduces = config is not None and not _leaves_accumulation(config)
    if not shards or excluded or reduces or call.argument("deepspeed") is not None:
        return {}
    return batches(context, call.argument("gradient_accumulation_steps"))


def _names_sharding(words: str) -> bool:
    """Return whether ``fsdp`` shards gradients and keeps them on the GPU: ``"full_shard auto_wrap"``."""
    return "shard" in words and "no_shard" not in words and "offload" not in words


def _leaves_accumulation(config: Value) -> bool:
    """Return whether an ``accelerator_config`` certainly does not reduce gradients with each batch."""
    inner: Value | None
    if isinstance(config, Result) and config.call.name.endswith("AcceleratorConfig") and not config.call.unpacks:
        inner = config.call.argument("gradient_accumulation_kwargs")
    elif isinstance(config, Mapping) and config.complete:
        inner = config.get("gradient_accumulation_kwargs")
    else:
        return isinstance(config, Constant) and config.value is None
    if inner is None:
        return True
    return isinstance(inner, Mapping) and inner.complete and not constant(inner.get("sync_each_batch"))


def _of_job(context: Context) -> dict[str, object]:
    """Return the batches per step of a job whose hyperparameters become the script's TrainingArguments."""
    passed = context.settings.hyperparameters
    sharding, steps = str(passed.get("fsdp") or ""), str(passed.get("gradient_accumulation_steps") or "")
    reduces = "sync_each_batch" in str(passed.get("accelerator_config") or "") or passed.get("deepspeed")
    if not _names_sharding(sharding) or reduces or not steps.isdigit():
        return {}
    return {"batches": f"{steps} batches"} if int(steps) > 1 else {}


def _trains_adapter(context: Context) -> bool:
    """Whether the script uses PEFT: Trainer then wraps adapters separately, and their unsharded gradients are small."""
    runs = running(context)
    return any(call.name.startswith("peft.") and runs(call) for call in context.trace.calls)


_LATER = "set_requires_gradient_sync"
_REPLICATE = ("torch.distributed._composable.replicate", "torch.distributed._composable.replicate.replicate")
"""DDP that changes a model in place. It has a method of the same name."""


@check("SMP308")
def _whole_gradients(context: Context) -> Iterator[Hit]:
    never, option = option_of_batches(context)
    if never:
        return
    delays = (_of_models, _in_place, _by_fabric, _by_accelerate, _by_trainer)
    for call, values in (delay for ways in delays for delay in ways(context)):
        name, variant = values.get("option", option), "framework" if "framework" in values else "call"
        needed = f"with --{name} above 1" if name else ""
        yield Hit(call.module, call.node, values, variant=variant, needed=needed)


def _of_models(context: Context) -> Iterator[_Delay]:
    """``no_sync`` of a model that FSDP returned."""
    wraps, runs = sharding_calls(context), running(context)
    for call in context.trace.methods("no_sync") if wraps else ():
        wrap = wrapped_by(call.receiver, wraps)
        if wrap is None or in_place(wrap) or not runs(call) or exclusive(call, wrap) or elsewhere(call):
            continue
        if may_offload(wrap.argument("cpu_offload", 3)):
            continue
        if around_backward(context, call) and not _is_light(context, wrap, adapters(context, wrap)):
            yield call, {"call": "no_sync()"}


def _in_place(context: Context) -> Iterator[_Delay]:
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
            yield call, {"call": f"{_LATER}()"}


def _is_light(context: Context, wrap: Call, adapting: list[Call]) -> bool:
    """Return whether only adapters have gradients: their unsharded gradients are small."""
    if not adapting:
        return False
    reaching = Reaching(context)
    places = [Hit(adapter.module, adapter.node) for adapter in adapting]
    sure = any(not reaching.never(place) and not reaching.needed(place) for place in places)
    return sure and not mixes(context, wrap)
