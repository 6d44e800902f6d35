"""How a script wraps its model with FSDP: units, precision, clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.edits import replace
from smp_advisor.reading.values import Constant, External, Result, options
from smp_advisor.scripts.checks.fsdp_adapters import adapters
from smp_advisor.scripts.checks.replicas import by_framework, wrapped_by
from smp_advisor.scripts.checks.sharding import in_place, sharding_calls
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.names import is_optimizer
from smp_advisor.scripts.queries import argument_node, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.edits import Edit
    from smp_advisor.reading.trace import Call

_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
_SCALERS = ("torch.cuda.amp.GradScaler", "torch.amp.GradScaler")
_SHARDED_SCALERS = (
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
    "torch.distributed.fsdp.ShardedGradScaler",
)
_BY_HAND = ("torch.distributed.fsdp.wrap.wrap", "torch.distributed.fsdp.wrap.enable_wrap")


def _wraps(context: Context) -> list[Call]:
    return [] if by_framework(context) else [call for call in sharding_calls(context) if call.reached]


@check("SMP311")
def _norm_of_all_shards(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in _wraps(context) if not in_place(wrap)]
    for call in context.trace.named(*_CLIPS) if wraps else ():
        if not call.reached:
            continue
        for origin in origins(call.argument("parameters", 0)):
            made_by = origin.call if isinstance(origin, Result) else None
            if made_by is None or made_by.method != "parameters" or wrapped_by(made_by.receiver, wraps) is None:
                continue
            yield Hit(call.module, call.node, {}, [_own_clipping(call)])


def _own_clipping(call: Call) -> Edit | None:
    """The change to ``model.clip_grad_norm_(norm)``."""
    norm = argument_node(call, "max_norm", 1)
    parameters = argument_node(call, "parameters", 0)
    text = call.module.text(parameters) if parameters is not None else ""
    if norm is None or not text.endswith(".parameters()") or len(call.node.args) + len(call.node.keywords) > 2:
        return None
    model = text.removesuffix(".parameters()")
    return replace(call.module, call.node, f"{model}.clip_grad_norm_({call.module.text(norm)})")


@check("SMP312")
def _several_units(context: Context) -> Iterator[Hit]:
    wraps = _wraps(context)
    # A part of a script, without an optimizer, may be for a small model. Examples of SMP v2 without a plan are, too.
    complete = any(is_optimizer(call.name) and call.reached for call in context.trace.calls)
    planned = not context.libraries.smp_v2 or (context.settings.hybrid_shard_degree or 1) > 1
    if len({wrap.node for wrap in wraps}) != 1 or not planned or not complete:
        return
    if context.trace.named(*_BY_HAND) or adapters(context):
        return  # the units of adapters are SMP309's
    wrap = wraps[0]
    if wrap.unpacks or any(call.loops for call in wraps) or _in_recursion(wrap):
        return
    policy = wrap.argument("auto_wrap_policy", 4)
    if in_place(wrap):
        if not context.trace.named("torch.distributed.fsdp.fully_shard")[1:] and not _applied(context):
            yield Hit(wrap.module, wrap.node, {"call": "fully_shard"}, variant="fully_shard")
    elif policy is None or (isinstance(policy, Constant) and policy.value is None):
        yield Hit(wrap.module, wrap.node, variant="no policy")


def _in_recursion(wrap: Call) -> bool:
    nodes = [function.node for function in wrap.functions]
    return len(nodes) != len(set(nodes)) or any(not hasattr(node, "name") for node in nodes)


def _applied(context: Context) -> bool:
    """Whether another function shards the blocks: ``model.apply(shard)``."""
    return bool(context.trace.methods("apply")) and any(
        isinstance(option, External) and option.path.endswith("fully_shard")
        for call in context.trace.methods("apply")
        for value in call.arguments
        for option in options(value)
    )


@check("SMP313")
def _scaled_by_all_ranks(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in _wraps(context) if _in_half_precision(wrap)]
    if not wraps or context.trace.named(*_SHARDED_SCALERS):
        return
    scalers = [call for call in context.trace.named(*_SCALERS) if call.reached]
    if scalers and not in_place(wraps[0]):
        yield Hit(scalers[0].module, scalers[0].node, variant="local")
    elif not scalers and any(call.reached for call in context.trace.methods("backward")):
        yield Hit(wraps[0].module, wraps[0].node, variant="none")


def _in_half_precision(wrap: Call) -> bool:
    precision = wrap.argument("mp_policy") if in_place(wrap) else wrap.argument("mixed_precision", 6)
    for origin in origins(precision):
        if isinstance(origin, Result) and origin.call.name.endswith(("MixedPrecision", "MixedPrecisionPolicy")):
            dtypes = options(origin.call.argument("param_dtype", 0))
            if dtypes and all(isinstance(d, External) and d.path in ("torch.float16", "torch.half") for d in dtypes):
                return True
    return False
