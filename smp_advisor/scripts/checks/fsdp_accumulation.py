"""Gradient accumulation under FSDP: reduced with every batch, or unsharded on every GPU until the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import External, Result, Value
from smp_advisor.scripts.checks.accumulating_frameworks import by_accelerate, by_fabric, by_trainer
from smp_advisor.scripts.checks.delayed_reduction import (
    Delay,
    around_backward,
    calls_of,
    elsewhere,
    option_of_batches,
)
from smp_advisor.scripts.checks.fsdp_adapters import adapters, mixes
from smp_advisor.scripts.checks.model_parameters import model_parameters
from smp_advisor.scripts.checks.sharding import in_place, may_offload, running, sharding_calls, wrap_of
from smp_advisor.scripts.conditions import Conditions
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import origins
from smp_advisor.scripts.reaching import Reaching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_LATER = "set_requires_gradient_sync"
_REPLICATE = ("torch.distributed._composable.replicate", "torch.distributed._composable.replicate.replicate")
"""DDP that changes a model in place. It has a method of the same name."""
_SIZES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
_GIB = 1 << 30


@check("SMP308")
def _whole_gradients(context: Context) -> Iterator[Hit]:
    never, option = option_of_batches(context)
    if never:
        return
    delays = (_of_models, _in_place, by_fabric, by_accelerate, by_trainer)
    for delay in (delay for ways in delays for delay in ways(context)):
        values: dict[str, object] = {"figure": _figure(context, delay.element_bytes), **delay.values}
        variant = "framework" if "framework" in values else "call"
        if option or "option" in values:
            variant, values = f"{variant} by option", {"option": option, **values}
        yield Hit(delay.call.module, delay.call.node, values, variant=variant)


def _figure(context: Context, element_bytes: int | None) -> str:
    """Size of the unsharded gradients."""
    count = model_parameters(context)
    if count is None:
        return (
            f"{element_bytes} bytes per parameter" if element_bytes else "2 bytes per parameter in 16 bits, 4 in fp32"
        )
    size = f"{element_bytes} bytes each" if element_bytes else "2 bytes each, 4 in fp32"
    return f"about {count * (element_bytes or 2) / _GIB:,.1f} GiB for {count / 1e9:.3g} B parameters ({size})"


def _of_models(context: Context) -> Iterator[Delay]:
    """``no_sync`` of a model that FSDP returned."""
    wraps, runs = sharding_calls(context), running(context)
    for call in calls_of(context, "no_sync") if wraps else ():
        wrap = wrap_of(call.receiver, wraps) if call.receiver is not None else None
        if wrap is None or in_place(wrap) or not runs(call) or exclusive(call, wrap) or elsewhere(call):
            continue
        if may_offload(wrap.argument("cpu_offload", 3)):
            continue
        if around_backward(context, call) and not _is_light(context, wrap, adapters(context, wrap)):
            yield Delay(call, {"call": "no_sync()"}, _element_bytes(wrap))


def _in_place(context: Context) -> Iterator[Delay]:
    """The counterpart of ``no_sync`` for a model that ``fully_shard`` has changed."""
    wraps, runs = [wrap for wrap in sharding_calls(context) if in_place(wrap)], running(context)
    replicating = context.trace.named(*_REPLICATE)
    for call in calls_of(context, _LATER) if wraps else ():
        argument = call.argument("requires_gradient_sync", 0)
        wrap = wrap_of(call.receiver, wraps) if call.receiver is not None else None
        if argument is None or not runs(call) or elsewhere(call) or (replicating and wrap is None):
            continue
        reduces = Conditions(context.settings).truth(argument) is True
        apart = all(exclusive(call, sharding) for sharding in wraps)
        if not reduces and not apart and not _is_light(context, wraps[-1], adapters(context)):
            yield Delay(call, {"call": f"{_LATER}()"}, _element_bytes(wrap or wraps[-1]))


def _is_light(context: Context, wrap: Call, makers: list[Call]) -> bool:
    """Whether only adapters have gradients: their unsharded gradients are small."""
    if not makers:
        return False
    reaching = Reaching(context)
    places = [Hit(maker.module, maker.node) for maker in makers]
    sure = any(not reaching.never(place) and not reaching.needed(place) for place in places)
    return sure and not mixes(context, wrap)


def _element_bytes(wrap: Call) -> int | None:
    """Bytes per element of an unsharded gradient: FSDP's compute type; for FSDP2, the type it reduces in."""
    precision = wrap.argument("mp_policy") if in_place(wrap) else wrap.argument("mixed_precision", 6)
    for origin in origins(precision):
        if isinstance(origin, Result) and origin.call.name.endswith(("MixedPrecision", "MixedPrecisionPolicy")):
            computed = _size(origin.call.argument("param_dtype", 0))
            reduced = _size(origin.call.argument("reduce_dtype", 1)) if in_place(wrap) else None
            return reduced or computed
    return None


def _size(dtype: Value | None) -> int | None:
    return _SIZES.get(dtype.path.removeprefix("torch.")) if isinstance(dtype, External) else None
