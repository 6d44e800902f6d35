"""Tensor parallelism: the modules that it covers, and the source of their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import Constant, Instance, Result, Value, options
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import constant, is_plain_model, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_CONTEXTS = ("smp.tensor_parallelism", "smp.model_creation")
_LATER_LOADS = ("load_state_dict", "resume_from_checkpoint")


@check("SMP122", "smp_torch", needs="tensor_parallel")
def _parallel_modules(context: Context) -> Iterator[Hit]:
    if context.trainer:
        return
    if not context.wrappings or any(call.name.startswith("smp.nn.") for call in context.trace.calls):
        return
    marks = context.trace.named("smp.set_tensor_parallelism", "smp.tensor_parallelism", "smp.model_creation")
    on = [call for call in marks if _turns_on(call)]
    if any(path.startswith("smp.nn.") for cls in context.trace.classes for path in cls.ancestors()):
        return
    values: dict[str, object] = {"degree": context.settings.tensor_parallel_degree}
    if not on:
        call = marks[0] if marks else context.wrappings[0]
        yield Hit(call.module, call.node, values)
    elif not any(call.name == "smp.set_tensor_parallelism" for call in on):
        # The script marks models for tensor parallelism, except in this branch.
        for model in _models(context):
            if not any(_may_turn_on(value) for value in model.contexts):
                yield Hit(model.module, model.node, values)


def _models(context: Context) -> list[Call]:
    """Calls that create a model that is wrapped later."""
    wrapped = [origin for call in context.wrappings for argument in call.arguments[:1] for origin in origins(argument)]
    return [model.call for model in wrapped if isinstance(model, (Instance, Result)) and is_plain_model(model)]


def _may_turn_on(value: Value) -> bool:
    """Whether a context may be one of tensor parallelism. A context that is not visible may be one."""
    for option in options(value):
        if not isinstance(option, Result):
            return True
        if option.call.name in _CONTEXTS and _turns_on(option.call):
            return True
    return False


def _turns_on(call: Call) -> bool:
    if call.name == "smp.model_creation":
        enabled = call.argument("tensor_parallelism", 0)
        return call.unpacks or (enabled is not None and not _is_false(enabled))
    position = 1 if call.name == "smp.set_tensor_parallelism" else 0
    enabled = call.argument("enabled", position)
    return enabled is None or not _is_false(enabled)


def _is_false(value: object) -> bool:
    return isinstance(value, Constant) and value.value is False


@check("SMP123", "smp_torch", needs="tensor_parallel")
def _weights_after_wrapping(context: Context) -> Iterator[Hit]:
    if not context.wrappings:
        return
    wrapping = context.wrappings[0]
    wrapped = [origin for argument in wrapping.arguments for origin in origins(argument)]
    later = [call for call in context.trace.methods(*_LATER_LOADS) if call.order > wrapping.order and call.reached]
    for call in context.trace.methods("load_state_dict"):
        early = call.reached and call.order < wrapping.order and not exclusive(call, wrapping)
        same = call.receiver is not None and any(
            origin is model for origin in origins(call.receiver) for model in wrapped
        )
        if early and same:
            yield Hit(call.module, call.node, variant="state dict")
    if any(_loads_model(call) for call in later):
        return
    for source in wrapped:
        if (
            isinstance(source, Result)
            and source.call.method == "from_pretrained"
            and source.call.name.startswith("transformers.")
        ):
            parallel = any(
                isinstance(option, Result) and option.call.name in _CONTEXTS and _turns_on(option.call)
                for value in source.call.contexts
                for option in options(value)
            )
            if parallel and constant(source.call.argument("state_dict")) is None:
                yield Hit(source.call.module, source.call.node, variant="pretrained")


def _loads_model(call: Call) -> bool:
    """Whether the call may load the model's weights, not those of the optimizer or scheduler."""
    text = call.module.text(call.node.func).lower()
    return not any(word in text for word in ("optim", "sched", "scaler"))
