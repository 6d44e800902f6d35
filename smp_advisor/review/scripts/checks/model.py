"""The model of SMP v1: its size, its partition, its tensor parallelism and its memory."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.core.files import table
from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import Instance, Result, options
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import constant, is_plain_model, makers, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call


_WIDTHS = ("n_embd", "hidden_size", "d_model")
_DEPTHS = ("n_layer", "num_hidden_layers", "num_layers")


_UNSUPPORTED: dict[str, str] = table("smp_advisor.review.scripts", "data/names.toml")["unsupported"]
_DISTRIBUTED_FAMILIES = ("GPT2", "Bert", "Roberta", "GPTJ", "GPTNeo")
_FROM_CONFIG = ("from_config", "_from_config")
_HUGGING_FACE_CLASS = re.compile(r"(?P<family>[A-Z]\w*?)(?:For[A-Z]\w*|LMHeadModel|Model)")


@check("SMP132", "smp_torch")
def _unsupported(context: Context) -> Iterator[Hit]:
    wrappings, scalers = context.wrappings, context.trace.named("smp.amp.GradScaler")
    for call in context.trace.named(*_UNSUPPORTED):
        feature = _UNSUPPORTED[call.name]
        excluded = bool(wrappings) and all(exclusive(call, mine) for mine in wrappings)
        excluded = excluded or ("GradScaler" in feature and any(exclusive(call, mine) for mine in scalers))
        later = [argument for wrapping in wrappings for argument in wrapping.arguments]
        if call.name.startswith("torch.jit.") and not any(getattr(model, "call", None) is call for model in later):
            continue  # a helper function is compiled, not the model
        if not excluded:
            yield Hit(call.module, call.node, {"feature": feature})


@check("SMP135", "smp_torch", needs="tensor_parallel")
def _supported_family(context: Context) -> Iterator[Hit]:
    registered = context.trace.named("smp.tp_register_with_module", "smp.tp_register")
    if registered or any(call.name.startswith("smp.nn.Distributed") for call in context.trace.calls):
        return
    for call in context.trace.calls:
        parts = call.name.split(".")
        if parts[0] != "transformers" or len(parts) < 2:
            continue
        name = parts[-2] if parts[-1] in (*_FROM_CONFIG, "from_pretrained") and len(parts) > 2 else parts[-1]
        if name.startswith("Auto") and call.method in _FROM_CONFIG:
            name = _class_of_config(call)
        match = _HUGGING_FACE_CLASS.fullmatch(name)
        if match and match["family"] not in _DISTRIBUTED_FAMILIES and not name.startswith(("Auto", "PreTrained")):
            yield Hit(call.module, call.node, {"family": match["family"]})


def _class_of_config(call: Call) -> str:
    """The class that ``AutoModel.from_config(LlamaConfig(...))`` creates: ``LlamaModel``; empty if not visible."""
    names = {
        maker.name.removesuffix(".from_dict").rpartition(".")[2]
        for maker in makers(call.argument("config", 0))
        if maker.name.startswith("transformers.")
    }
    name = names.pop() if len(names) == 1 else ""
    return f"{name.removesuffix('Config')}Model" if name.endswith("Config") else ""


@check("SMP114", "smp_torch")
def _shared_parameters(context: Context) -> Iterator[Hit]:
    places = _places(context)
    for module in context.trace.modules if places else ():
        for node in module.all(ast.Assign):
            target = node.targets[0]
            if not isinstance(target, ast.Attribute) or not isinstance(node.value, ast.Attribute):
                continue
            first, second = _place(target.value, places), _place(node.value.value, places)
            if first is not None and second is not None and first[1] != second[1]:
                names = ("first_module", "first", "second_module", "second")
                yield Hit(module, node, dict(zip(names, (*first, *second), strict=True)))


def _place(node: ast.expr, places: dict[str, int]) -> tuple[str, int] | None:
    """Return the module of the parameter and its partition, which may be that of an enclosing module."""
    path = _path(node)
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in places:
            return path, places[name]
    return None


def _path(node: ast.expr) -> str:
    """``embed`` of ``self.embed``; ``transformer.embed`` of ``model.transformer.embed``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed(parts))


def _places(context: Context) -> dict[str, int]:
    """Modules assigned inside ``with smp.partition(i)`` or placed with ``smp.set_partition(module, i)``, by name."""
    stages: dict[str, int] = {}
    for store in context.trace.stores:
        for option in (option for value in store.contexts for option in options(value)):
            if isinstance(option, Result) and option.call.name == "smp.partition":
                number = constant(option.call.argument("i", 0) or option.call.argument("id"))
                stages |= {_path(store.node): number} if isinstance(number, int) else {}
    for call in context.trace.named("smp.set_partition"):
        number = constant(call.argument("i", 1))
        if call.node.args and isinstance(number, int):
            stages[_path(call.node.args[0])] = number
    return stages


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
        models = [origin for call in context.wrappings for model in call.arguments[:1] for origin in origins(model)]
        for model in (
            value.call for value in models if isinstance(value, (Instance, Result)) and is_plain_model(value)
        ):
            # A context that is not visible may be one of tensor parallelism.
            around = [option for value in model.contexts for option in options(value)]
            calls = [option.call for option in around if isinstance(option, Result)]
            if len(calls) == len(around) and not any(call.name in _CONTEXTS and _turns_on(call) for call in calls):
                yield Hit(model.module, model.node, values)


def _turns_on(call: Call) -> bool:
    if call.name == "smp.model_creation":
        enabled = call.argument("tensor_parallelism", 0)
        return call.unpacks or (enabled is not None and constant(enabled) is not False)
    position = 1 if call.name == "smp.set_tensor_parallelism" else 0
    enabled = call.argument("enabled", position)
    return enabled is None or constant(enabled) is not False


@check("SMP123", "smp_torch", needs="tensor_parallel")
def _weights_after_wrapping(context: Context) -> Iterator[Hit]:
    if not context.wrappings:
        return
    wrapping = context.wrappings[0]
    wrapped = [origin for argument in wrapping.arguments for origin in origins(argument)]
    loaded = [maker for argument in wrapping.arguments for maker in makers(argument)]
    later = [call for call in context.trace.methods(*_LATER_LOADS) if call.order > wrapping.order and call.reached]
    for call in context.trace.methods("load_state_dict"):
        early = call.reached and call.order < wrapping.order and not exclusive(call, wrapping)
        same = call.receiver is not None and any(
            origin is model for origin in origins(call.receiver) for model in wrapped
        )
        if early and same:
            yield Hit(call.module, call.node, variant="state dict")
    # Calls that load the model's weights, not those of the optimizer or scheduler.
    names = [call.module.text(call.node.func).lower() for call in later]
    if any(not any(word in name for word in ("optim", "sched", "scaler")) for name in names):
        return
    for call in loaded:
        if call.method == "from_pretrained" and call.name.startswith("transformers."):
            around = [option for value in call.contexts for option in options(value)]
            parallel = any(isinstance(o, Result) and o.call.name in _CONTEXTS and _turns_on(o.call) for o in around)
            if parallel and constant(call.argument("state_dict")) is None:
                yield Hit(call.module, call.node, variant="pretrained")


_NATIVE = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
_PATCHES = "smp.patches.checkpoint"
_LARGE_PARAMETERS = 100e9
"""The developer guide recommends delayed initialization from this size."""


def checkpointing(context: Context) -> list[Call]:
    """Return the calls that turn on the library's activation checkpointing."""
    names = ("smp.set_activation_checkpointing", f"{_PATCHES}.checkpoint", f"{_PATCHES}.checkpoint_sequential")
    return [*context.trace.named(*names), *context.trace.named("smp.checkpoint", "smp.checkpoint_sequential")]


@check("SMP115", "smp_torch")
def _native_checkpointing(context: Context) -> Iterator[Hit]:
    for call in context.trace.named(*_NATIVE):
        # It has no effect in a function that the script does not call.
        yield Hit(call.module, call.node, {"call": call.name}, severity=None if call.reached else "warning")


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
    if context.settings.delayed_parameter_initialization or context.trace.named("smp.delay_param_initialization"):
        return
    for call in context.trace.calls if context.wrappings else ():
        if call.name.startswith("transformers.") and call.name.endswith("Config"):
            values = call.keywords
            width, depth = (
                next((n for name in names if isinstance(n := constant(values.get(name)), int)), 0)
                for names in (_WIDTHS, _DEPTHS)
            )
            count = 12 * depth * width**2
            if count > _LARGE_PARAMETERS:
                yield Hit(call.module, call.node, {"count": f"{count / 1e9:.0f} B"})
