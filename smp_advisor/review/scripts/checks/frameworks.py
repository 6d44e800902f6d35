"""Accelerate, Hugging Face Trainer and Lightning: the work that they take over, done by the script as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.library import get_library
from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import Class, Operation, Result, Value, options
from smp_advisor.review.scripts.checks.data import iterations_over, loaders
from smp_advisor.review.scripts.checks.parallel import reached_accelerators
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import argument_node, constant, derivation, is_optimizer, makers, updates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.findings.finding import Severity
    from smp_advisor.review.reading.trace import Call


def _is_accelerator(value: Value | None, accelerators: list[Call]) -> bool:
    return any(maker in accelerators for maker in makers(value))


def _unpacks_into_prepare(context: Context, accelerators: list[Call]) -> bool:
    """Return whether the prepared objects are not all visible."""
    calls = context.trace.methods("prepare", "prepare_data_loader", "prepare_optimizer")
    mine = [call for call in calls if _is_accelerator(call.receiver, accelerators)]
    return not mine or any(call.unpacks or not (call.arguments or call.keywords) for call in mine)


@check("TRN701")
def _backward_of_accelerate(context: Context) -> Iterator[Hit]:
    accelerators = reached_accelerators(context)
    unscaled = context.libraries.xla  # neither scales nor reduces in Accelerate's backward
    if not accelerators or _unpacks_into_prepare(context, accelerators) or not updates(context.trace) or unscaled:
        return
    own = [call for call in context.trace.methods("backward") if _is_accelerator(call.receiver, accelerators)]
    for call in context.trace.methods("backward"):
        if call in own or not call.reached or not call.loops or call.arguments or call.name:
            continue
        # The accelerators of the model that the loss certainly comes from.
        sources = [part.call for part in derivation(call.receiver) if isinstance(part, Result)]
        prepares = [prepare for prepare in context.trace.methods("prepare", "prepare_model") if prepare in sources]
        owners = [maker for prepare in prepares for maker in makers(prepare.receiver)]
        preparing = [accelerator for accelerator in accelerators if accelerator in owners]
        if any(peer.loops[-1:] == call.loops[-1:] for peer in own) or not preparing:
            continue
        divides = any(isinstance(part, Operation) and part.operator == "Div" for part in derivation(call.receiver))
        simple = all(_needs_no_scaling(accelerator, divides=divides) for accelerator in preparing)
        severity: Severity | None = "warning" if simple else None
        yield Hit(call.module, call.node, {"call": call.module.text(call.node)}, severity=severity)


def _needs_no_scaling(accelerator: Call, *, divides: bool) -> bool:
    """Return whether only DeepSpeed or fp16, which the launcher may choose, needs Accelerate's own backward.

    `divides` is whether the script divides its loss by the batches of a step.
    """
    precision = options(accelerator.argument("mixed_precision", 2))
    unscaled = all(constant(option) in (None, "no", "bf16", "fp8") for option in precision)
    more = ["gradient_accumulation_plugin", "deepspeed_plugin", "deepspeed_plugins"]
    more += [] if divides else ["gradient_accumulation_steps"]
    return unscaled and not accelerator.unpacks and not any(accelerator.gives(name) for name in more)


@check("TRN702")
def _everything_prepared(context: Context) -> Iterator[Hit]:
    accelerators = reached_accelerators(context)
    if not accelerators or _unpacks_into_prepare(context, accelerators):
        return
    prepared = {
        maker.node
        for call in context.trace.methods("prepare", "prepare_model", "prepare_optimizer", "prepare_data_loader")
        if _is_accelerator(call.receiver, accelerators)
        for value in (*call.arguments, *call.keywords.values())
        for maker in makers(value)
    }
    owners = set(map(_class_of, accelerators))
    backwards = [call for call in context.trace.methods("backward") if call.reached and _is_of(call, owners)]
    # A function of another package may prepare what it gets with the accelerator.
    inputs = [[maker for value in (*call.arguments, *call.keywords.values()) for maker in makers(value)]
              for call in context.trace.calls if call.function is None and not call.method]  # fmt: skip
    inputs = [several for several in inputs if not set(accelerators).isdisjoint(several)]
    for loader in loaders(context):
        if all(exclusive(accelerator, loader) for accelerator in accelerators):
            continue
        fed = iterations_over(context, loader)
        trains = any(iteration.node in call.loops for iteration in fed for call in backwards)
        sent = any(loader in several for several in inputs)
        if loader.reached and trains and loader.node not in prepared and not sent and not loader.gives("sampler", 3):
            yield Hit(loader.module, loader.node, {"object": "data loader"}, variant="loader")
    own = {call.loops[-1:] for call in backwards if _is_accelerator(call.receiver, accelerators)}
    steps = [call for call in context.trace.methods("step") if call.reached and call.loops[-1:] in own]
    for call in context.trace.calls:
        stepped = any(call in makers(step.receiver) for step in steps)
        if not (call.reached and is_optimizer(call.name) and stepped) or call.node in prepared:
            continue
        models = {maker.node for group in makers(call.argument("params", 0)) for maker in makers(group.receiver)}
        if models <= prepared:
            yield Hit(call.module, call.node, {"object": "optimizer"}, variant="optimizer")


def _class_of(call: Call) -> Class | None:
    """Return the class whose method makes a call."""
    return next((function.home for function in reversed(call.functions) if function.home is not None), None)


def _is_of(call: Call, owners: set[Class | None]) -> bool:
    """Return whether a call is not in a class of its own, apart from those that make the accelerators."""
    cls = _class_of(call)
    return cls is None or any(home is None or home in cls.lineage or cls in home.lineage for home in owners)


@check("TRN705")
def _checkpointing_by_trainer(context: Context) -> Iterator[Hit]:
    record = get_library(context.settings.library) if context.settings.library else None
    planned = record is not None and record.smdistributed and record.launcher == "mpi"
    with_v1 = context.libraries.smp_torch or planned or context.settings.microbatches
    for call in trainer_arguments(context) if with_v1 else ():
        value = call.argument("gradient_checkpointing")
        if value is not None and Conditions(context.settings).truth(value) is True:
            yield Hit(call.module, argument_node(call, "gradient_checkpointing") or call.node)
