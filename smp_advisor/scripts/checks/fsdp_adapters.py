"""Adapters under FSDP: units with both trained and frozen parameters."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import Class, Collection, External, Partial, Result, Value, options
from smp_advisor.scripts.checks.sharding import in_place, inside, running, same, sharded_model, sharding_calls
from smp_advisor.scripts.conditions import Conditions
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import mentions
from smp_advisor.scripts.reaching import Reaching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

__all__ = ["STRATEGY", "adapters", "mixes"]

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
        places = [Hit(maker.module, maker.node) for maker in makers if mixes(context, wrap)]
        place = next((candidate for candidate in places if not reaching.never(candidate)), None)
        if place is None:
            continue
        variant = "blocks" if wrap.gives("auto_wrap_policy", 4) else "model"
        yield Hit(wrap.module, wrap.node, variant=variant, needed=reaching.needed(place))


def adapters(context: Context, wrap: Call | None = None) -> list[Call]:
    """Calls that leave only an adapter to be trained; with `wrap`, only for the model that it shards."""
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
        if call.name.endswith(_FREEZERS) or (call.method == "add_adapter" and _configures(call)):
            yield call
    for call in context.trace.methods("named_parameters"):
        loop = call.module.parent(call.node)
        if isinstance(loop, ast.For) and _freezes(loop):
            yield call


def _configures(call: Call) -> bool:
    """Whether one of the arguments is a PEFT configuration."""
    return any(
        isinstance(option, Result) and option.call.name.startswith("peft.")
        for value in (*call.arguments, *call.keywords.values())
        for option in options(value)
    )


def _freezes(loop: ast.For) -> bool:
    """Whether the loop over named parameters selects the trained ones by an adapter's name."""
    sets = any(
        isinstance(node, ast.Attribute)
        and ((node.attr == "requires_grad" and isinstance(node.ctx, ast.Store)) or node.attr == "requires_grad_")
        for node in ast.walk(loop)
    )
    return sets and mentions(loop, *_WORDS)


def _adapted(call: Call) -> list[Value]:
    """The model that a call adapts: PEFT's result, or the model changed in place."""
    if call.name in _MAKERS:
        return [Result(call)]
    if call.name in _INTO:
        model = call.argument("model", 1)
    else:
        model = call.receiver if call.method in ("add_adapter", "named_parameters") else call.argument("model", 0)
    return inside(model)


def mixes(context: Context, wrap: Call) -> bool:
    """Whether an FSDP call certainly makes units of blocks that combine trained and frozen parameters."""
    strategy = wrap.name.endswith(STRATEGY)
    if in_place(wrap) or wrap.unpacks or wrap.gives("ignored_modules") or wrap.gives("ignored_states"):
        return False
    original_parameters = wrap.argument("use_orig_params")
    if not (
        strategy
        if original_parameters is None
        else Conditions(context.settings, defaults=True).truth(original_parameters)
    ):
        return False
    policy = wrap.argument("auto_wrap_policy", None if strategy else 4)
    if policy is None:
        # The model is one unit, unless the script itself shards parts of it.
        return not strategy and not wrap.loops and len({call.node for call in sharding_calls(context)}) == 1
    return all(_takes_blocks(option) for option in options(policy))


def _takes_blocks(policy: Value) -> bool:
    """Whether the policy lists block classes, and neither adapters nor layers of them."""
    classes: Value | None = None
    if isinstance(policy, Partial) and isinstance(policy.of, External):
        if policy.of.path.endswith(".transformer_auto_wrap_policy"):
            classes = policy.keywords.get("transformer_layer_cls")
    elif isinstance(policy, Result) and policy.call.name.endswith(".ModuleWrapPolicy"):
        classes = policy.call.argument("module_classes", 0)
    elif isinstance(policy, Collection):
        classes = policy  # the form that Lightning accepts
    members = classes.items if isinstance(classes, Collection) else ()
    return bool(members) and all(_is_block(member) for member in members)


def _is_block(cls: Value) -> bool:
    name = cls.path if isinstance(cls, External) else cls.node.name if isinstance(cls, Class) else ""
    made_of = name.startswith("torch.nn.") or not name
    return not made_of and _ADAPTER.search(name.rpartition(".")[2]) is None
