"""Frameworks that accumulate batches without reducing gradients: Fabric, Accelerate and Hugging Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.values import Constant, Function, Mapping, Result, Unknown, Value, options
from smp_advisor.scripts.checks.delayed_reduction import Delay, around_backward, batches, calls_of, elsewhere
from smp_advisor.scripts.checks.fsdp_adapters import STRATEGY, adapters, mixes
from smp_advisor.scripts.checks.sharding import is_whole, may_offload, running
from smp_advisor.scripts.conditions import Conditions
from smp_advisor.scripts.queries import constant, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call
    from smp_advisor.scripts.context import Context

__all__ = ["by_accelerate", "by_fabric", "by_trainer"]


def by_fabric(context: Context) -> Iterator[Delay]:
    """``no_backward_sync`` of a Fabric with an FSDP strategy."""
    runs = running(context)
    fabrics = [call for call in context.trace.calls if runs(call) and _is_fabric(call)]
    launches = context.trace.methods("launch")
    # No other code calls the functions that `launch` calls.
    launched = any(call.arguments and isinstance(call.arguments[0], Function) for call in launches)
    for call in context.trace.methods("no_backward_sync") if fabrics else ():
        owners = origins(call.receiver)
        of_fabric = runs(call) and any(isinstance(owner, Result) and owner.call in fabrics for owner in owners)
        handed = launched and not call.reached and any(isinstance(owner, Unknown) for owner in owners)
        enabled = call.argument("enabled", 1)
        off = enabled is not None and Conditions(context.settings).truth(enabled) is False
        if (of_fabric or handed) and not off and not elsewhere(call) and not _is_light(context):
            yield Delay(call, {"call": "no_backward_sync()"})


def _is_fabric(call: Call) -> bool:
    strategy = call.argument("strategy", 1) if call.name.endswith(".Fabric") else None
    return strategy is not None and any(_is_sharded_strategy(option) for option in options(strategy))


def _is_sharded_strategy(value: Value) -> bool:
    if isinstance(value, Result):
        sharded = value.call.name.endswith((STRATEGY, ".ModelParallelStrategy"))
        return sharded and _leaves_it_open(value)
    return str(constant(value)) == "fsdp"


def _is_light(context: Context) -> bool:
    """Whether only adapters have gradients, apart from frozen parameters: their unsharded gradients are small."""
    strategies = [call for call in context.trace.calls if call.name.endswith(STRATEGY)]
    return bool(adapters(context)) and not any(mixes(context, strategy) for strategy in strategies)


def by_accelerate(context: Context) -> Iterator[Delay]:
    """Accelerate with FSDP: ``accumulate`` with more than one batch, and ``no_sync`` itself."""
    runs = running(context)
    for accelerator in context.trace.named("accelerate.Accelerator", "accelerate.accelerator.Accelerator"):
        if not runs(accelerator) or not _accelerates_fsdp(context, accelerator) or _trains_adapter(context):
            continue
        element_bytes = 2 if constant(accelerator.argument("mixed_precision")) in ("bf16", "fp16") else None
        count = _unsynced_batches(context, accelerator)
        if count and any(runs(call) and _is_of(call, accelerator) for call in context.trace.methods("accumulate")):
            yield Delay(accelerator, {"framework": "Accelerate", **count}, element_bytes)
        for call in calls_of(context, "no_sync"):
            if runs(call) and _is_of(call, accelerator) and not elsewhere(call) and around_backward(context, call):
                yield Delay(call, {"call": "no_sync()"}, element_bytes)


def _is_of(call: Call, accelerator: Call) -> bool:
    owners = origins(call.receiver)
    return any(isinstance(owner, Result) and owner.call is accelerator for owner in owners)


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
    for origin in origins(plugin):
        if (
            isinstance(origin, Result)
            and origin.call.name.endswith("GradientAccumulationPlugin")
            and not origin.call.unpacks
        ):
            every_batch = origin.call.argument("sync_each_batch", 3)
            if every_batch is None or Conditions(context.settings, defaults=True).truth(every_batch) is False:
                return batches(context, origin.call.argument("num_steps", 0))
    return {}


def by_trainer(context: Context) -> Iterator[Delay]:
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
            half = any(constant(call.argument(name)) is True for name in ("bf16", "fp16"))
            yield Delay(call, {"framework": "Trainer", **count}, 2 if half else None)


def _of_arguments(context: Context, call: Call) -> dict[str, object]:
    """Batches per step of TrainingArguments with literal values."""
    sharding, config, fsdp_config = (call.argument(name) for name in ("fsdp", "accelerator_config", "fsdp_config"))
    shards = _shards(context, sharding) if sharding is not None else context.libraries.fsdp
    settings = [option for option in options(fsdp_config) if isinstance(option, Mapping)]
    excluded = any({"xla", "cpu_offload"} & set(table.entries) for table in settings)
    reduces = config is not None and not _leaves_accumulation(config)
    if not shards or excluded or reduces or call.argument("deepspeed") is not None:
        return {}
    return batches(context, call.argument("gradient_accumulation_steps"))


def _shards(context: Context, sharding: Value) -> bool:
    """Whether ``fsdp`` of TrainingArguments is set: ``"full_shard auto_wrap"``, a list of such words, or True."""
    words = [Conditions(context.settings, defaults=True).known(option) for option in options(sharding)]
    words += [constant(item) for option in options(sharding) for item in getattr(option, "items", ())]
    return any(word is True or (isinstance(word, str) and _names_sharding(word)) for word in words)


def _names_sharding(words: str) -> bool:
    """Whether ``fsdp`` shards gradients and keeps them on the GPU: ``"full_shard auto_wrap"``."""
    return "shard" in words and "no_shard" not in words and "offload" not in words


def _leaves_accumulation(config: Value) -> bool:
    """Whether an ``accelerator_config`` certainly does not reduce gradients with each batch."""
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
    """Batches per step of a job whose hyperparameters become the script's TrainingArguments."""
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
