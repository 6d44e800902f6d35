"""What PyTorch's FSDP shards: the calls that wrap a model, and the values that stand for what they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.values import Constant, External, Result, options
from smp_advisor.scripts.queries import constant, origins

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.reading.trace import Call
    from smp_advisor.reading.values import Value
    from smp_advisor.scripts.context import Context

__all__ = [
    "FSDP",
    "given_model",
    "in_place",
    "inside",
    "is_whole",
    "may_offload",
    "running",
    "same",
    "sharding_calls",
    "wrap_of",
]

FSDP = (
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard",
)
_PASSING = ("offload_wrapper", "checkpoint_wrapper", "torch.compile", "tsm.transform", "tsm.transform.transform")
"""What returns the model that it is given, changed or wrapped once more."""


def sharding_calls(context: Context) -> list[Call]:
    """Calls that shard a model; not where every GPU is to hold a replica."""
    if context.libraries.smp_v2 and context.settings.hybrid_shard_degree == 1:
        return []
    runs = running(context)
    return [
        call
        for call in context.trace.named(*FSDP)
        if runs(call) and not is_whole(call.argument("sharding_strategy", 2))
    ]


def running(context: Context) -> Callable[[Call], bool]:
    """Whether a call is one that counts: running the file reaches it, or reaches no training at all.

    A file that only defines functions is run by a command line of its own, or imported.
    """
    trained = any(call.reached for call in context.trace.methods("backward")) or any(
        call.reached for name, calls in context.trace.by_name.items() if name.endswith("Trainer") for call in calls
    )
    return lambda call: call.reached or not trained


def in_place(call: Call) -> bool:
    """Whether it is FSDP2's ``fully_shard``, which changes the model and returns no other."""
    return call.name.endswith("fully_shard")


def is_whole(strategy: Value | None) -> bool:
    """Whether a sharding strategy surely leaves gradients whole on every GPU: ``NO_SHARD``."""
    found = options(strategy) if strategy is not None else ()
    names = [one.path if isinstance(one, External) else str(constant(one)) for one in found]
    return bool(names) and all(name.rpartition(".")[2].upper() == "NO_SHARD" for name in names)


def may_offload(given: Value | None) -> bool:
    """Whether ``cpu_offload`` may move parameters to host memory: FSDP1 then needs ``no_sync`` to accumulate."""
    return any(
        may_offload(one.call.argument("offload_params", 0))
        if isinstance(one, Result) and one.call.name.endswith("CPUOffload")
        else not isinstance(one, Constant) or bool(one.value)
        for one in (options(given) if given is not None else ())
    )


def given_model(call: Call) -> list[Value]:
    """What a sharding call may be given to shard."""
    given = call.argument("module", 0)
    return inside(given) if given is not None else []


def inside(value: Value) -> list[Value]:
    """What `value` may be, without the wrappers that leave the model as it is."""
    found: list[Value] = []
    pending = origins(value)
    while pending and len(found) < 20:
        one = pending.pop()
        if isinstance(one, Result) and one.call.name.endswith(_PASSING) and one.call.arguments:
            pending += origins(one.call.arguments[0])
        else:
            found.append(one)
    return found


def same(one: Value, other: Value) -> bool:
    """Whether two values are one object, as far as reading tells."""
    return one is other or (isinstance(one, Result) and isinstance(other, Result) and one.call is other.call)


def wrap_of(value: Value, wraps: list[Call]) -> Call | None:
    """The call among `wraps` that sharded what `value` stands for; None where none surely did."""
    for one in inside(value):
        for wrap in wraps:
            if isinstance(one, Result) and one.call is wrap:
                return wrap
            if in_place(wrap) and any(same(one, given) for given in given_model(wrap)):
                return wrap
    return None
