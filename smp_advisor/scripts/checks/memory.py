"""Memory of the model: checkpointing, offloading, delayed initialization."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import Edit, replace
from smp_advisor.scripts.checks.model_parameters import configured_parameters
from smp_advisor.scripts.context import Context, Hit, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_NATIVE = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
_PATCHES = "smp.patches.checkpoint"
_LARGE_PARAMETERS = 100e9
"""The developer guide recommends delayed initialization from this size."""


def checkpointing(context: Context) -> list[Call]:
    """Calls that turn on the library's activation checkpointing."""
    names = ("smp.set_activation_checkpointing", f"{_PATCHES}.checkpoint", f"{_PATCHES}.checkpoint_sequential")
    return [*context.trace.named(*names), *context.trace.named("smp.checkpoint", "smp.checkpoint_sequential")]


@check("SMP115", "smp_torch")
def _native_checkpointing(context: Context) -> Iterator[Hit]:
    for call in context.trace.named(*_NATIVE):
        edits = _library_checkpoint(call, call.name.rpartition(".")[2])
        # It has no effect in a function that the script does not call.
        yield Hit(call.module, call.node, {"call": call.name}, edits, None if call.reached else "warning")
    for call in context.trace.methods("gradient_checkpointing_enable"):
        if call.reached and context.wrappings:
            yield Hit(call.module, call.node, {"call": f"{call.method}()"})


def _library_checkpoint(call: Call, name: str) -> list[Edit]:
    """The library's function by its full name, if a module of the model is checkpointed."""
    first = call.node.args[0] if call.node.args else None
    is_module = isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name) and first.value.id == "self"
    smp = call.module.scope.find("smp")
    if not is_module or getattr(smp, "path", "") != "smp" or call.keywords:
        return []
    return [replace(call.module, call.node.func, f"smp.patches.checkpoint.{name}")]


@check("SMP116", "smp_torch")
def _checkpointing_asked_for(context: Context) -> Iterator[Hit]:
    if not context.wrappings or context.trainer:
        return
    wrapping = context.wrappings[0]
    calls = checkpointing(context)
    for call in context.trace.named("smp.set_activation_checkpointing"):
        if call.reached and call.order < wrapping.order:
            yield Hit(call.module, call.node, variant="early")
    planned = context.settings.activation_checkpointing
    if planned and not calls:
        yield Hit(wrapping.module, wrapping.node, {"strategy": planned}, variant="never")


@check("SMP117", "smp_torch")
def _offloading(context: Context) -> Iterator[Hit]:
    settings = context.settings
    if not settings.offload_activations or not context.wrappings:
        return
    wrapping = context.wrappings[0]
    if not settings.activation_checkpointing and not checkpointing(context):
        yield Hit(wrapping.module, wrapping.node, variant="no checkpointing")
    elif settings.microbatches == 1 and settings.pipelined:
        yield Hit(wrapping.module, wrapping.node, variant="one microbatch")


@check("SMP130", "smp_torch")
def _delayed_initialization(context: Context) -> Iterator[Hit]:
    if context.settings.delayed_parameter_initialization:
        return
    if context.trace.named("smp.delay_param_initialization"):
        return
    for call in context.trace.calls:
        if call.name.startswith("transformers.") and call.name.endswith("Config") and context.wrappings:
            count = configured_parameters(call)
            if count > _LARGE_PARAMETERS:
                yield Hit(call.module, call.node, {"count": f"{count / 1e9:.0f} B"})
