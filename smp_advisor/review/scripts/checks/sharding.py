"""Models that PyTorch FSDP shards: the calls that wrap them, and the values that they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.review.reading.values import Constant, External, Result, options
from smp_advisor.review.scripts.queries import constant, known_names, origins

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value
    from smp_advisor.review.scripts.context import Context


FSDP = known_names("fsdp")
_PASSING = ("offload_wrapper", "checkpoint_wrapper", "torch.compile", "tsm.transform", "tsm.transform.transform")
"""Functions that return the model they get, changed or wrapped."""


def sharding_calls(context: Context) -> list[Call]:
    """Return the calls that shard a model, except where every GPU keeps a replica."""
    if context.libraries.smp_v2 and context.settings.hybrid_shard_degree == 1:
        return []
    runs = running(context)
    return [
        call
        for call in context.trace.named(*FSDP)
        if runs(call) and not is_whole(call.argument("sharding_strategy", 2))
    ]


def shards(context: Context, *makers: Call) -> bool:
    """Return whether the model is certainly sharded: by the plan, or by plugins of the Accelerators in `makers`."""
    plugins = ("fsdp_plugin", "deepspeed_plugin", "deepspeed_plugins")
    plugin_values = [options(maker.argument(name)) for maker in makers for name in plugins]
    certain = any(values and all(isinstance(value, Result) for value in values) for values in plugin_values)
    return certain or context.libraries.fsdp or context.settings.shards_by_launcher


def running(context: Context) -> Callable[[Call], bool]:
    """Return whether a call counts: running the file reaches it, or reaches no training at all.

    A file that only defines functions is imported, or run by its own command line.
    """
    trained = any(call.reached for call in context.trace.methods("backward")) or any(
        call.reached for name, calls in context.trace.by_name.items() if name.endswith("Trainer") for call in calls
    )
    return lambda call: call.reached or not trained


def in_place(call: Call) -> bool:
    """Return whether it is FSDP2's ``fully_shard``, which changes the model in place."""
    return call.name.endswith("fully_shard")


def is_whole(strategy: Value | None) -> bool:
    """Return whether a sharding strategy certainly does not shard gradients: ``NO_SHARD``."""
    names = [o.path if isinstance(o, External) else str(constant(o)) for o in options(strategy)]
    return bool(names) and all(name.rpartition(".")[2].upper() == "NO_SHARD" for name in names)


def may_offload(cpu_offload: Value | None) -> bool:
    """Return whether ``cpu_offload`` may move parameters to host memory. FSDP1 then needs ``no_sync`` to accumulate."""
    return any(
        may_offload(option.call.argument("offload_params", 0))
        if isinstance(option, Result) and option.call.name.endswith("CPUOffload")
        else not isinstance(option, Constant) or bool(option.value)
        for option in options(cpu_offload)
    )


def sharded_model(call: Call) -> list[Value]:
    """Return the models that a sharding call may shard."""
    return inside(call.argument("module", 0))


def inside(value: Value | None) -> list[Value]:
    """Return the models that `value` may be, without wrappers that keep the model."""
    models: list[Value] = []
    pending = origins(value)
    while pending and len(models) < 20:
        model = pending.pop()
        if isinstance(model, Result) and model.call.name.endswith(_PASSING) and model.call.arguments:
            pending += origins(model.call.arguments[0])
        else:
            models.append(model)
    return models


def same(first: Value, second: Value) -> bool:
    """Return whether two values are certainly the same object."""
    return first is second or (isinstance(first, Result) and isinstance(second, Result) and first.call is second.call)
