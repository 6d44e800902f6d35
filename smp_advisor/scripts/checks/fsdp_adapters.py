"""Adapters under FSDP: units in which trained parameters stand beside frozen ones."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import Class, Collection, External, Partial, Result, Value, options
from smp_advisor.scripts.checks.sharding import given_model, in_place, inside, running, same, sharding_calls
from smp_advisor.scripts.conditions import Conditions
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import mentions
from smp_advisor.scripts.reaching import Reaching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

__all__ = ["STRATEGY", "adapters", "mixes"]

STRATEGY = ".FSDPStrategy"
"""Lightning's way to FSDP1, with ``use_orig_params=True`` unless it is told otherwise."""

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
        place = next((one for one in places if not reaching.never(one)), None)
        if place is None:
            continue
        variant = "blocks" if wrap.gives("auto_wrap_policy", 4) else "model"
        yield Hit(wrap.module, wrap.node, variant=variant, needed=reaching.needed(place))


def adapters(context: Context, wrap: Call | None = None) -> list[Call]:
    """Calls that leave only an adapter of a model to be trained; where `wrap` is given, of the model it shards."""
    runs = running(context)
    found = [call for call in _candidates(context) if runs(call)]
    if wrap is None:
        return found
    given = given_model(wrap)
    return [
        call
        for call in found
        if call.order < wrap.order
        and not exclusive(call, wrap)
        and any(same(one, other) for one in given for other in _adapted(call))
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
    """Whether one of the arguments is a configuration of PEFT's."""
    return any(
        isinstance(one, Result) and one.call.name.startswith("peft.")
        for value in (*call.arguments, *call.keywords.values())
        for one in options(value)
    )


def _freezes(loop: ast.For) -> bool:
    """Whether the loop over named parameters decides by an adapter's name which of them are trained."""
    sets = any(
        isinstance(node, ast.Attribute)
        and ((node.attr == "requires_grad" and isinstance(node.ctx, ast.Store)) or node.attr == "requires_grad_")
        for node in ast.walk(loop)
    )
    return sets and mentions(loop, *_WORDS)


def _adapted(call: Call) -> list[Value]:
    """The model that a call adapts: what PEFT returns, or what was changed in place."""
    if call.name in _MAKERS:
        return [Result(call)]
    if call.name in _INTO:
        given = call.argument("model", 1)
    else:
        given = call.receiver if call.method in ("add_adapter", "named_parameters") else call.argument("model", 0)
    return inside(given) if given is not None else []


def mixes(context: Context, wrap: Call) -> bool:
    """Whether a call of FSDP surely makes units of whole blocks that keep trained and frozen parameters together."""
    strategy = wrap.name.endswith(STRATEGY)
    if in_place(wrap) or wrap.unpacks or wrap.gives("ignored_modules") or wrap.gives("ignored_states"):
        return False
    kept = wrap.argument("use_orig_params")
    if not (strategy if kept is None else Conditions(context.settings, defaults=True).truth(kept)):
        return False
    policy = wrap.argument("auto_wrap_policy", None if strategy else 4)
    if policy is None:
        # The model is one unit, unless the script shards parts of it by itself.
        return not strategy and not wrap.loops and len({call.node for call in sharding_calls(context)}) == 1
    return all(_takes_blocks(one) for one in options(policy))


def _takes_blocks(policy: Value) -> bool:
    """Whether the policy names classes of blocks, and neither adapters nor the layers that these are made of."""
    classes: Value | None = None
    if isinstance(policy, Partial) and isinstance(policy.of, External):
        if policy.of.path.endswith(".transformer_auto_wrap_policy"):
            classes = policy.keywords.get("transformer_layer_cls")
    elif isinstance(policy, Result) and policy.call.name.endswith(".ModuleWrapPolicy"):
        classes = policy.call.argument("module_classes", 0)
    elif isinstance(policy, Collection):
        classes = policy  # as Lightning takes them
    named = classes.items if isinstance(classes, Collection) else ()
    return bool(named) and all(_is_block(one) for one in named)


def _is_block(cls: Value) -> bool:
    name = cls.path if isinstance(cls, External) else cls.node.name if isinstance(cls, Class) else ""
    made_of = name.startswith("torch.nn.") or not name
    return not made_of and _ADAPTER.search(name.rpartition(".")[2]) is None
