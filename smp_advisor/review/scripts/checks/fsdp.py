"""How a script wraps, casts, shards and accumulates the gradients of its model and its adapters with FSDP."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive, whenever
from smp_advisor.review.reading.values import (
    Class,
    Collection,
    External,
    Item,
    Member,
    Partial,
    Result,
    Value,
    is_none,
    options,
)
from smp_advisor.review.scripts.checks.parallel import by_framework, wrapped_by
from smp_advisor.review.scripts.checks.sharding import (
    in_place,
    inside,
    may_offload,
    running,
    same,
    sharded_model,
    sharding_calls,
)
from smp_advisor.review.scripts.conditions import Conditions, Reaching, option_of_batches
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import is_optimizer, mentions, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call


_SCALERS = ("torch.cuda.amp.GradScaler", "torch.amp.GradScaler")
_SHARDED_SCALERS = (
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
    "torch.distributed.fsdp.ShardedGradScaler",
)
_HALF = frozenset({"torch.float16", "torch.half"})
_LOW = _HALF | {"torch.bfloat16"}
_BY_HAND = ("torch.distributed.fsdp.wrap.wrap", "torch.distributed.fsdp.wrap.enable_wrap")


def _wraps(context: Context) -> list[Call]:
    return [] if by_framework(context) else [call for call in sharding_calls(context) if call.reached]


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
    nodes = [function.node for function in wrap.functions]
    recursive = len(nodes) != len(set(nodes)) or any(not hasattr(node, "name") for node in nodes)
    if wrap.unpacks or any(call.loops for call in wraps) or recursive:
        return
    policy = wrap.argument("auto_wrap_policy", 4)
    if in_place(wrap):
        shards = [o for call in context.trace.methods("apply") for value in call.arguments for o in options(value)]
        applied = any(isinstance(option, External) and option.path.endswith("fully_shard") for option in shards)
        if not context.trace.named("torch.distributed.fsdp.fully_shard")[1:] and not applied:
            yield Hit(wrap.module, wrap.node, {"call": "fully_shard"}, variant="fully_shard")
    elif policy is None or is_none(policy):
        yield Hit(wrap.module, wrap.node, variant="no policy")


@check("SMP313")
def _scaled_by_all_ranks(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in _wraps(context) if _computes_in(wrap, _HALF)]
    scalers = [call for call in context.trace.named(*_SCALERS) if call.reached]
    if scalers and not wraps and _casts_to_half(context):
        wraps = [wrap for wrap in _wraps(context) if not in_place(wrap)]
    if not wraps or context.trace.named(*_SHARDED_SCALERS):
        return
    if scalers and not in_place(wraps[0]):
        yield Hit(scalers[0].module, scalers[0].node, variant="local")
    elif not scalers and any(call.reached for call in context.trace.methods("backward")):
        yield Hit(wraps[0].module, wraps[0].node, variant="none")


def _casts_to_half(context: Context) -> bool:
    """Return whether a forward pass certainly runs under autocast in float16, the default for GPUs."""
    for call in context.trace.named("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"):
        dtype = call.argument("dtype", 0 if call.name.startswith("torch.cuda") else 1)
        dtypes = [option.path for option in options(dtype) if isinstance(option, External)]
        if call.reached and not call.gives("enabled") and (dtype is None or (dtypes and set(dtypes) <= _HALF)):
            return True
    return False


@check("SMP315")
def _parameters_of_the_optimizer(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in _wraps(context) if _computes_in(wrap, _LOW)]
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
            of_wrapped = wrapped_by(call.receiver, [wrap]) is not None
            if (inner or of_wrapped) and whenever(call, wrap):
                yield Hit(call.module, call.node, {"call": call.module.text(call.node)})
                break


def _computes_in(wrap: Call, types: frozenset[str]) -> bool:
    """Return whether the wrapper certainly computes in one of the types, from parameters that it keeps as they are."""
    precision = origins(wrap.argument("mp_policy") if in_place(wrap) else wrap.argument("mixed_precision", 6))
    policies = [origin.call for origin in precision if isinstance(origin, Result)]
    are_policies = all(policy.name.endswith(("MixedPrecision", "MixedPrecisionPolicy")) for policy in policies)
    dtypes = [dtype for policy in policies for dtype in options(policy.argument("param_dtype", 0))]
    low = all(isinstance(dtype, External) and dtype.path in types for dtype in dtypes)
    return bool(dtypes) and are_policies and len(policies) == len(precision) and low


def _casts(call: Call, *methods: str) -> bool:
    """Return whether the call is one of the methods, or ``to`` with one of their types."""
    if call.method != "to":
        return call.method in methods and not call.arguments
    dtypes = [option for value in (*call.arguments, *call.keywords.values()) for option in options(value)]
    types = _LOW if "half" in methods else {"torch.float", "torch.float32"}
    return any(isinstance(dtype, External) and dtype.path in types for dtype in dtypes)


@check("SMP318")
def _blocks_before_the_root(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in _wraps(context) if in_place(wrap)]
    for wrap in wraps:
        # Other functions may shard another model, or modules that replace sharded ones.
        before = {block.node for block in wraps if block.order <= wrap.order}
        beside = [block for block in wraps if block.functions[-1:] == wrap.functions[-1:] and block.node not in before]
        for block in beside:
            owners = [owner for origin in origins(block.argument("module", 0)) for owner in _owners(origin)]
            models = sharded_model(wrap)
            models += [part for model in models for part in getattr(model, "attributes", {}).values()]
            inner = any(same(model, owner) for model in models for owner in owners)
            if inner and wrap.order < block.order and not wrap.loops and not exclusive(wrap, block):
                yield Hit(wrap.module, wrap.node)
                break


def _owners(value: Value, depth: int = 0) -> Iterator[Value]:
    """Objects that `value` is a part of: the model of ``for block in model.layers``."""
    owner = value.owner if isinstance(value, (Item, Member)) else None
    if isinstance(value, Result) and value.call.method in ("modules", "children", "values"):
        owner = value.call.receiver
    for origin in origins(owner) if owner is not None and depth < 6 else ():
        yield origin
        yield from _owners(origin, depth + 1)


STRATEGY = ".FSDPStrategy"
"""Lightning's strategy for FSDP1, with ``use_orig_params=True`` by default."""

_MAKERS = ("peft.get_peft_model", "peft.mapping.get_peft_model", "peft.mapping_func.get_peft_model")
_INTO = ("peft.inject_adapter_in_model", "peft.mapping.inject_adapter_in_model")
_FREEZERS = ("mark_only_lora_as_trainable", "mark_only_adapter_as_trainable", "mark_only_adapter_v2_as_trainable")
_ADAPTER = re.compile(r"lora|adapter|prefix|prompt|ia3", re.IGNORECASE)
_WORDS = ("lora", "adapter")


@check("SMP309")
def _adapters_beside_frozen(context: Context) -> Iterator[Hit]:
    reaching, runs = Reaching(context), running(context)
    strategies = [call for call in context.trace.calls if call.name.endswith(STRATEGY) and runs(call)]
    for wrap in (*sharding_calls(context), *strategies):
        makers = adapters(context, None if wrap in strategies else wrap)
        # Commands of one program are not joined: one adapts the model, and another one trains all of it.
        apart = [m for m in makers if m.functions and wrap.functions and m.functions[:1] != wrap.functions[:1]]
        makers = [m for m in makers if m not in apart or (m.name in _MAKERS and wrap not in strategies)]
        mixed = mixes(context, wrap)
        uniform = _UNIFORM.search(context.text)
        places = [Hit(maker.module, maker.node) for maker in makers if mixed is not None and (mixed or not uniform)]
        place = next((candidate for candidate in places if not reaching.never(candidate)), None)
        if place is None:
            continue
        variant = "blocks" if wrap.gives("auto_wrap_policy", 4) else "model"
        yield Hit(wrap.module, wrap.node, variant=variant if mixed else "flat", needed=reaching.needed(place))


_UNIFORM = re.compile(r"requires_grad_\((?:True)?\)|requires_grad *= *True|inference_mode *= *True")
"""All parameters of the adapted model are trained after all, or none."""


def adapters(context: Context, wrap: Call | None = None) -> list[Call]:
    """Return the calls that leave only an adapter to be trained; with `wrap`, only for the model that it shards."""
    runs = running(context)
    calls = [call for call in _candidates(context) if runs(call)]
    if wrap is None:
        return calls
    sharded = sharded_model(wrap)
    return [
        call
        for call in calls
        if call.order < wrap.order
        and not exclusive(call, wrap)
        and any(same(model, adapted) for model in sharded for adapted in _adapted(call))
    ]


def _candidates(context: Context) -> Iterator[Call]:
    yield from context.trace.named(*_MAKERS, *_INTO)
    for call in context.trace.calls:
        arguments = [option for value in (*call.arguments, *call.keywords.values()) for option in options(value)]
        by_peft = any(isinstance(option, Result) and option.call.name.startswith("peft.") for option in arguments)
        if call.name.endswith(_FREEZERS) or (call.method == "add_adapter" and by_peft):
            yield call
    for call in context.trace.methods("named_parameters"):
        # A loop over named parameters that selects the trained ones by an adapter's name.
        loop = call.module.parent(call.node)
        if isinstance(loop, ast.For) and mentions(loop, *_WORDS):
            names = {
                node.attr
                for node in ast.walk(loop)
                if isinstance(node, ast.Attribute) and (node.attr != "requires_grad" or isinstance(node.ctx, ast.Store))
            }
            yield from [call] if names & {"requires_grad", "requires_grad_"} else ()


def _adapted(call: Call) -> list[Value]:
    """Return the model that a call adapts: PEFT's result, or the model changed in place."""
    if call.name in _MAKERS:
        return [Result(call)]
    if call.name in _INTO:
        model = call.argument("model", 1)
    else:
        model = call.receiver if call.method in ("add_adapter", "named_parameters") else call.argument("model", 0)
    return inside(model)


def mixes(context: Context, wrap: Call) -> bool | None:
    """Whether an FSDP call that certainly mixes trained and frozen parameters keeps them apart; None for others."""
    strategy = wrap.name.endswith(STRATEGY)
    if in_place(wrap) or wrap.unpacks or wrap.gives("ignored_modules") or wrap.gives("ignored_states"):
        return None
    original = wrap.argument("use_orig_params", 9)
    keeps = strategy if original is None else Conditions(context.settings, defaults=True).truth(original)
    policy = wrap.argument("auto_wrap_policy", None if strategy else 4)
    if policy is None or is_none(policy):
        # The model is one unit, unless the script itself shards parts of it.
        mixed = not strategy and not wrap.loops and len({call.node for call in sharding_calls(context)}) == 1
    else:
        mixed = all(_takes_blocks(option) for option in options(policy))
    return keeps if mixed else None


def _takes_blocks(policy: Value) -> bool:
    """Return whether the policy lists block classes, and neither adapters nor layers of them."""
    classes: Value | None = None
    if isinstance(policy, Partial) and isinstance(policy.of, External):
        if policy.of.path.endswith(".transformer_auto_wrap_policy"):
            classes = policy.keywords.get("transformer_layer_cls")
    elif isinstance(policy, Result) and policy.call.name.endswith(".ModuleWrapPolicy"):
        classes = policy.call.argument("module_classes", 0)
    elif isinstance(policy, Collection):
        classes = policy  # the form that Lightning accepts
    members = classes.items if isinstance(classes, Collection) else ()
    names = [m.path if isinstance(m, External) else m.node.name if isinstance(m, Class) else "" for m in members]
    parts = any(not name or name.startswith("torch.nn.") or _ADAPTER.search(name.rpartition(".")[2]) for name in names)
    return bool(names) and not parts


_OURS = ("fsdp", "fullysharded", "fully_shard")
_OTHERS = ("ddp", "distributeddataparallel", "deepspeed")


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
    return any(
        mentions(guard.test, *(_OTHERS if guard.holds is not isinstance(guard.test, ast.UnaryOp) else _OURS))
        for guard in call.guards
    )


_LATER = "set_requires_gradient_sync"
_REPLICATE = ("torch.distributed._composable.replicate", "torch.distributed._composable.replicate.replicate")
"""DDP that changes a model in place. It has a method of the same name."""


@check("SMP308")
def _whole_gradients(context: Context) -> Iterator[Hit]:
    never, option = option_of_batches(context)
    if never:
        return
    for call in (*_of_models(context), *_in_place(context)):
        needed = f"with --{option} above 1" if option else ""
        yield Hit(call.module, call.node, {"call": call.method or "no_sync"}, variant="call", needed=needed)


def _of_models(context: Context) -> Iterator[Call]:
    """``no_sync`` of a model that FSDP returned."""
    wraps, runs = sharding_calls(context), running(context)
    for call in context.trace.methods("no_sync") if wraps else ():
        wrap = wrapped_by(call.receiver, wraps)
        if wrap is None or in_place(wrap) or not runs(call) or exclusive(call, wrap) or elsewhere(call):
            continue
        if may_offload(wrap.argument("cpu_offload", 3)):
            continue
        if around_backward(context, call) and not _is_light(context, wrap, adapters(context, wrap)):
            yield call


def _in_place(context: Context) -> Iterator[Call]:
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
            yield call


def _is_light(context: Context, wrap: Call, adapting: list[Call]) -> bool:
    """Return whether only adapters have gradients: their unsharded gradients are small."""
    if not adapting:
        return False
    reaching = Reaching(context)
    places = [Hit(adapter.module, adapter.node) for adapter in adapting]
    sure = any(not reaching.never(place) and not reaching.needed(place) for place in places)
    return sure and not mixes(context, wrap)
