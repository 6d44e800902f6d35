"""The order in which a script casts, checkpoints and shards its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import External, Partial, Result, Value, options
from smp_advisor.scripts.checks.fsdp_adapters import adapters
from smp_advisor.scripts.checks.replicas import by_framework, wrapped_by
from smp_advisor.scripts.checks.sharding import in_place, same, sharded_model, sharding_calls
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.names import is_optimizer
from smp_advisor.scripts.queries import origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_LOW = frozenset({"torch.float16", "torch.half", "torch.bfloat16"})
_CHECKPOINTS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def _wraps(context: Context) -> list[Call]:
    return [] if by_framework(context) else [call for call in sharding_calls(context) if call.reached]


@check("SMP315")
def _parameters_of_the_optimizer(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in _wraps(context) if _mixes(wrap)]
    trains = any(is_optimizer(call.name) and call.reached for call in context.trace.calls)
    if not wraps or not trains or adapters(context):
        return
    if any(_casts(call, "float") for call in context.trace.methods("float", "to")):
        return
    for call in context.trace.methods("half", "bfloat16", "to"):
        if not call.reached or not _casts(call, "half", "bfloat16"):
            continue
        for wrap in wraps:
            inner = any(same(model, owner) for model in sharded_model(wrap) for owner in origins(call.receiver))
            whole = wrapped_by(call.receiver, [wrap]) is not None
            if (inner or whole) and _whenever(call, wrap):
                yield Hit(call.module, call.node, {"call": call.module.text(call.node)})
                break


def _mixes(wrap: Call) -> bool:
    """Whether the wrapper certainly computes in 16 bits, from parameters that it keeps as they are."""
    precision = origins(wrap.argument("mp_policy") if in_place(wrap) else wrap.argument("mixed_precision", 6))
    policies = [origin.call for origin in precision if isinstance(origin, Result)]
    named = all(policy.name.endswith(("MixedPrecision", "MixedPrecisionPolicy")) for policy in policies)
    dtypes = [dtype for policy in policies for dtype in options(policy.argument("param_dtype", 0))]
    return bool(dtypes) and named and len(policies) == len(precision) and all(map(_is_low, dtypes))


def _is_low(dtype: Value) -> bool:
    return isinstance(dtype, External) and dtype.path in _LOW


def _casts(call: Call, *methods: str) -> bool:
    """Whether the call is one of the methods, or ``to`` with one of their types."""
    if call.method != "to":
        return call.method in methods and not call.arguments
    dtypes = [option for value in (*call.arguments, *call.keywords.values()) for option in options(value)]
    types = _LOW if "half" in methods else {"torch.float", "torch.float32"}
    return any(isinstance(dtype, External) and dtype.path in types for dtype in dtypes)


def _whenever(call: Call, wrap: Call) -> bool:
    """Whether the call runs whenever the wrapper does."""
    return not exclusive(call, wrap) and all(
        any(guard.test is condition.test and guard.holds == condition.holds for condition in wrap.guards)
        for guard in call.guards
    )


@check("SMP316")
def _units_inside_of_checkpoints(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in _wraps(context) if not in_place(wrap) and wrap.argument("auto_wrap_policy", 4)]
    for call in context.trace.named(f"{_CHECKPOINTS}.apply_activation_checkpointing"):
        if not call.reached or not _reentrant(call.argument("checkpoint_wrapper_fn", 1)):
            continue
        for wrap in wraps:
            first = call.order < wrap.order and not exclusive(call, wrap)
            models = [
                model
                for model in sharded_model(wrap)
                for owner in origins(call.argument("model", 0))
                if same(model, owner)
            ]
            if first and models and "CheckpointWrapper" not in wrap.module.source.text:
                yield Hit(call.module, call.node)
                break


def _reentrant(wrapper: Value | None) -> bool:
    """Whether the wrapper certainly has ``checkpoint_impl=CheckpointImpl.REENTRANT``."""
    chosen = [
        option
        for partial in options(wrapper)
        if isinstance(partial, Partial)
        for option in options(partial.keywords.get("checkpoint_impl"))
    ]
    return bool(chosen) and all(
        isinstance(option, External) and option.path.endswith("CheckpointImpl.REENTRANT") for option in chosen
    )
