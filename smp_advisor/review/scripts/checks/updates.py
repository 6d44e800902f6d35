"""Updates that are others than the script seems to make: not scaled, past the engine, of other parameters or pace."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.values import (
    Argument,
    Collection,
    Constant,
    External,
    Function,
    Instance,
    Item,
    Mapping,
    Member,
    Operation,
    Result,
    options,
)
from smp_advisor.review.scripts.checks.loops import updated_models
from smp_advisor.review.scripts.checks.parallel import REPLICATING, parallel_wraps, wrapped_by
from smp_advisor.review.scripts.checks.sharding import inside, same
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import elements_of, owner_kind
from smp_advisor.review.scripts.queries import (
    constant,
    derivation,
    is_optimizer,
    is_scheduler,
    makers,
    scales,
    updates,
)
from smp_advisor.review.scripts.releases import span_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.findings.finding import Severity
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Class, Value


@check("DDP626")
def _scale_that_follows(context: Context) -> Iterator[Hit]:
    passed = [value for call in context.trace.calls if call.function is None for value in
              (*call.arguments, *call.keywords.values())]  # fmt: skip
    passed += [call.receiver for call in context.trace.methods("update") if call.receiver is not None]
    if re.search(r"\.update(?:\(\)|\b(?! *\())|^(?!.*GradScaler)", context.text, re.DOTALL) or any(map(scales, passed)):
        return
    for call in context.trace.methods("step"):
        once = all(maker.loops != call.loops for maker in makers(call.receiver))
        repeated = [loop for loop in call.loops if not any(isinstance(s, ast.Break) for s in getattr(loop, "body", ()))]
        if call.reached and repeated and once and scales(call.receiver):
            yield Hit(call.module, call.node, {"call": call.module.text(call.node)})
            return


@check("DDP628")
def _parameters_of_the_model_that_trains(context: Context) -> Iterator[Hit]:
    """Adapters, heads or embeddings that the model gets after its optimizer was made."""
    makes = [call for call in context.trace.calls if call.reached and is_optimizer(call.name)]
    last = max((step.order for step, _ in updates(context.trace)), default=0)
    if len(makes) != 1 or re.search(r"add_param_group|\[.params.\]", context.text):
        return
    owners = [maker for maker in makers(makes[0].argument("params", 0)) if maker.method == "parameters"]
    models = [model for maker in owners for model in inside(maker.receiver)]
    for call in context.trace.calls:
        changed = call.argument("model", 0) if call.name.endswith("get_peft_model") else None
        changed = call.receiver if call.method in ("resize_token_embeddings", "add_adapter") else changed
        if call.reached and call.order > makes[0].order and is_one_of(changed, models):
            yield Hit(call.module, call.node, {"change": call.called})
    for store in context.trace.stores:
        new = [_is_new_layer(ast.unparse(maker.node)) for maker in makers(store.value)]
        after = makes[0].order < store.order < last and not re.search("requires_grad", context.text)
        if after and new and all(new) and is_one_of(store.owner, models):
            yield Hit(store.module, store.node, {"change": store.module.text(store.node)})


def is_one_of(value: Value | None, models: list[Value]) -> bool:
    changed = inside(value)
    return bool(changed) and all(any(same(part, model) for model in models) for part in changed)


@check("DDP629")
def _back_in_training_mode(context: Context) -> Iterator[Hit]:
    trained = {loop for back in context.trace.methods("backward") if back.reached for loop in back.loops}
    if context.trainer or re.search(r"\.train\(|training\s*=|set_training", context.text):
        return
    models = updated_models(context)
    for call in context.trace.methods("eval"):
        if call.reached and trained & {*call.loops} and is_one_of(call.receiver, models):
            yield Hit(call.module, call.node, {"call": call.module.text(call.node)})
            return


_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@check("TRN741")
def _steps_of_the_engine(context: Context) -> Iterator[Hit]:
    engines = [call for call in context.trace.named("deepspeed.initialize") if call.reached]

    def is_part(value: Value | None, key: int) -> bool:
        return any(
            isinstance(option, Item) and constant(option.key) == key and not {*elements_of(option)}.isdisjoint(engines)
            for option in options(value)
        )

    for engine in engines:
        config = engine.argument("config") or engine.argument("config_params")
        sizes = [constant(config.get(name)) for name in _BATCHES] if isinstance(config, Mapping) else []
        if all(type(size) is int and size > 0 for size in sizes) and sizes and sizes[0] % (sizes[1] * sizes[2]):
            yield Hit(engine.module, engine.node, variant="batches")
    steps = [call for call in context.trace.methods("step") if call.reached and call.loops and engines]
    for call in steps if not any(is_part(step.receiver, 0) for step in steps) else ():
        if is_part(call.receiver, 1):
            yield Hit(call.module, call.node, {"call": call.module.text(call.node)}, variant="step")
    backwards = context.trace.methods("backward") if engines else []
    for call in backwards if not any(is_part(back.receiver, 0) for back in backwards) else ():
        forwards = [part.call for part in derivation(call.receiver) if isinstance(part, Result)]
        new = span_of(context, "deepspeed").first >= (0, 18)
        if call.reached and not call.arguments and not new and any(is_part(part.receiver, 0) for part in forwards):
            yield Hit(call.module, call.node, {"call": call.module.text(call.node)}, variant="backward")


@check("DDP630")
def _all_parameters_used(context: Context) -> Iterator[Hit]:
    """Yield the layers that no code reads: DDP waits for their gradients."""
    modules = context.trace.modules
    loops = [node.iter for module in modules for node in module.all(ast.For)]
    loops += [node.iter for module in modules for node in module.all(ast.comprehension)]
    # All parameters may have a part in the loss, or be frozen.
    visited = any("parameters(" in ast.unparse(over) for over in loops) or re.search("requires_grad", context.text)
    for wrap in parallel_wraps(context) if not visited and context.trace.methods("backward") else ():
        if any(wrap in makers(value) for call in context.trace.calls if call.name and not call.name.startswith("torch.")
               for value in (*call.arguments, *call.keywords.values())):  # fmt: skip
            continue  # a function of another package may use every layer
        static, finds = wrap.argument("static_graph"), wrap.argument("find_unused_parameters", 6)
        tolerant = wrap.unpacks or (finds is not None and constant(finds) is not False)
        models = parts_of_model(wrap.argument("module", 0)) if wrap.name in REPLICATING and not tolerant else []
        for cls in {id(model.cls): model.cls for model in models}.values():
            own = cls.bases and all(isinstance(base, External) and base.path == "torch.nn.Module" for base in cls.bases)
            start = cls.members.get("__init__")
            if not own or not isinstance(start, Function) or _REFLECTS.search(cls.module.text(cls.node)):
                continue
            statements = start.node.body if isinstance(start.node.body, list) else []
            names = [node for node in cls.module.all(ast.Name) if node.id == "self"]
            uses = [use for name in names if (use := cls.module.parent(name)) is not None]
            if any(not isinstance(use, ast.Attribute) and "super(" not in ast.unparse(use) for use in uses):
                continue  # other code gets the model
            read = [node.attr for module in context.trace.modules for node in module.all(ast.Attribute)]
            yield from _dropped_outputs(context, wrap, cls, read)
            for node in statements if static is None or constant(static) is False else ():
                target = node.targets[0] if isinstance(node, ast.Assign) and not node.targets[1:] else None
                layer = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
                unused = isinstance(target, ast.Attribute) and read.count(target.attr) == 1
                if unused and _is_new_layer(layer) and target is not None:
                    yield Hit(cls.module, target, {"layer": ast.unparse(target)})


def parts_of_model(value: Value | None) -> list[Instance]:
    """Return the modules of the script in a model: it may be one, and have others as attributes or arguments."""
    models, pending = list[Instance](), inside(value)
    while pending and len(models) < _MOST_PARTS:
        part = pending.pop()
        if isinstance(part, Instance) and part not in models:
            models.append(part)
            pending += [inner for attribute in part.attributes.values() for inner in options(attribute)]
        elif isinstance(part, Result) and part.call.name.startswith("torch.nn."):
            pending += [inner for argument in part.call.arguments for inner in options(argument)]
        elif isinstance(part, Collection):
            pending += part.items
    return models


_MOST_PARTS = 100


def _dropped_outputs(context: Context, wrap: Call, cls: Class, read: list[str]) -> Iterator[Hit]:
    """Yield layers whose result is an output of the model that no line reads: ``logits, _ = model(batch)``."""
    forward = cls.members.get("forward")
    nodes = list(ast.walk(forward.node)) if isinstance(forward, Function) else []
    ends = [node.value.elts for node in nodes if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)]
    assigned = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    layers = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in cls.module.all(ast.Assign)}
    loads = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    calls = [call for call in context.trace.calls if call.reached and not call.method and call.receiver is not None
             and wrapped_by(call.receiver, [wrap])]  # fmt: skip
    dropped = list[set[int]]()
    for call in calls:
        statement = call.module.parent(call.node)
        targets = getattr(statement, "targets", [None])[0]
        names = [ast.unparse(part) for part in targets.elts] if isinstance(targets, ast.Tuple) else []
        used = {node.id for node in call.module.all(ast.Name) if isinstance(node.ctx, ast.Load)}
        dropped.append({at for at, name in enumerate(names) if name.isidentifier() and name not in used})
    for at in set[int].intersection(*dropped) if dropped and len(ends) == 1 else ():
        part = ends[0][at] if at < len(ends[0]) else None
        part = assigned.get(part.id) if isinstance(part, ast.Name) and loads.count(part.id) == 1 else part
        layer = part.func if isinstance(part, ast.Call) else None
        is_own = isinstance(layer, ast.Attribute) and _is_new_layer(layers.get(ast.unparse(layer), ""))
        if is_own and isinstance(layer, ast.Attribute) and read.count(layer.attr) == 2:
            yield Hit(cls.module, layer, {"layer": ast.unparse(layer)}, variant="output")


_REFLECTS = re.compile(r"getattr|children\(|modules\b|parameters\(|get_submodule|__dict__|requires_grad|freeze|apply\(")
_LAYERS = re.compile(
    r"(?:torch\.)?nn\.(?:(?:Bil|L)inear|Conv(?:Transpose)?[123]d|Embedding(?:Bag)?|(?:Layer|Group|RMS)Norm|Parameter"
    r"|BatchNorm[123]d|(?:LSTM|GRU|RNN)(?:Cell)?|MultiheadAttention|PReLU|TransformerEncoderLayer)\("
)


def _is_new_layer(text: str) -> bool:
    """Return whether an expression makes a layer with parameters."""
    return bool(_LAYERS.match(text)) and "affine=False" not in text and "requires_grad" not in text


@check("TRN718")
def _steps_of_the_schedule(context: Context) -> Iterator[Hit]:
    prepares = [
        call
        for call in context.trace.methods("prepare", "prepare_scheduler")
        if owner_kind(call.receiver) == "accelerate" and call.reached
    ]
    # Without `prepare`, or with arguments that are not known, the schedule counts as written.
    if not prepares or any(call.unpacks for call in prepares) or _steps_with_batches(context):
        return
    # The prepared objects, their owners, and the accumulation of these.
    inputs = [maker for prepare in prepares for value in prepare.arguments for maker in makers(value)]
    owners = [maker for prepare in prepares for maker in makers(prepare.receiver)]
    accumulated = [owner.argument("gradient_accumulation_steps", 4) or Constant(None) for owner in owners]
    trained = {loop for back in context.trace.methods("backward") if back.reached for loop in back.loops}
    innermost = {call.loops[-1:] for call in context.trace.methods("backward")}
    innermost |= {call.loops[-1:] for call, _ in updates(context.trace) if call.loops[1:]}
    steps = [call for call in context.trace.methods("step") if call.reached and trained & {*call.loops}]
    # Each schedule that counts updates, whose count did not come from the number of processes.
    for schedule in context.trace.calls:
        at = 3 if schedule.called == "get_scheduler" else 1 if schedule.called.startswith("Cosine") else 2
        counted = is_scheduler(schedule.name) or schedule.called == "get_scheduler"
        kinds = [option.default if isinstance(option, Argument) else option for option in options(
            schedule.argument("name", 0) if schedule.called == "get_scheduler" else None)]  # fmt: skip
        names = [option.path if isinstance(option, External) else str(constant(option)) for option in kinds]
        counted = counted and not any(_NEVER_ZERO.search(name) for name in (*names, schedule.called))
        count = next(filter(None, (schedule.argument(name, at) for name in _COUNTS)), None) if counted else None
        if not schedule.reached or not counted:
            continue
        stepped = [call for call in steps if _is_of(call.receiver, schedule, prepares)]
        values = (*schedule.arguments, *schedule.keywords.values())
        if not stepped or any(_counts_processes(part) for value in values for part in derivation(value)):
            continue
        if schedule in inputs and any(_is_multiplied(option, accumulated) for option in options(count)):
            yield Hit(schedule.module, schedule.node, {"scheduler": schedule.called}, variant="accumulated")
            continue
        warmup = schedule.argument("num_warmup_steps", at - 1 if schedule.called.startswith("get_") else None)
        updates_of_warmup = constant(warmup.default if isinstance(warmup, Argument) else warmup)
        # A prepared schedule takes one step per process: was its count that of the prepared loader?
        parts = [part.call for part in derivation(count) if isinstance(part, Result)]
        lengths = {_is_prepared(part, prepares, inputs) for part in parts if part.name == "len"}
        each_batch = all(call.loops[-1:] in innermost for call in stepped)
        sure = True
        if schedule not in inputs:
            variant = "unprepared" if lengths == {False} and each_batch else ""
        elif not each_batch:
            variant = "epochs"
        else:
            fixed = not lengths and isinstance(count, (Constant, Argument))
            variant = "steps" if lengths == {True} or fixed else "warmup" if updates_of_warmup else ""
            sure = lengths == {True}
        passed = [option.name for option in options(count) if isinstance(option, Argument)]
        needed = f"with --{passed[0]}" if passed and not variant and schedule in inputs and lengths == {False} else ""
        variant = variant or ("steps" if needed else "")
        if variant:
            values_shown: dict[str, object] = {"scheduler": schedule.called, "warmup": updates_of_warmup}
            severity: Severity | None = "warning" if variant == "steps" and not sure else None
            yield Hit(schedule.module, schedule.node, values_shown, severity=severity, variant=variant, needed=needed)


def _is_multiplied(value: Value, factors: list[Value]) -> bool:
    """Return whether a number is a product with one of the factors: ``max_steps * accumulation_steps``."""
    parts = value.operands if isinstance(value, Operation) and value.operator == "Mult" else ()
    names = {part.name for part in factors if isinstance(part, Argument)}
    return any((isinstance(part, Argument) and part.name in names) or _is_multiplied(part, factors) for part in parts)


_NEVER_ZERO = re.compile("constant|inverse_sqrt|plateau", re.IGNORECASE)
_COUNTS = ("num_training_steps", "T_max", "total_steps")


def _is_of(value: Value | None, schedule: Call, prepares: list[Call]) -> bool:
    """Return whether a stepped object is the schedule, or what ``prepare`` made of it."""
    for option in options(value):
        prepared = [call for call in elements_of(option) if call in prepares]
        at = constant(option.key) if isinstance(option, Item) else None
        for call in prepared:
            prepared_input = call.arguments[at] if isinstance(at, int) and at < len(call.arguments) else None
            prepared_input = (
                call.arguments[0] if prepared_input is None and len(call.arguments) == 1 else prepared_input
            )
            if schedule in makers(prepared_input):
                return True
        if schedule in makers(option):
            return True
    return False


def _is_prepared(length: Call, prepares: list[Call], inputs: list[Call]) -> bool | None:
    """Whether ``len`` is that of a prepared loader, which has the batches of one process; None of another object."""
    if any(call in prepares for value in length.arguments for call in elements_of(value)):
        return True
    return False if any(maker in inputs for value in length.arguments for maker in makers(value)) else None


def _counts_processes(value: Value) -> bool:
    return (isinstance(value, Member) and value.name == "num_processes") or (
        isinstance(value, Result) and value.call.called == "get_world_size"
    )


def _steps_with_batches(context: Context) -> bool:
    """Return whether Accelerate does not step the schedule once for each process."""
    settings = ("split_batches", "step_scheduler_with_optimizer", "dataloader_config")
    return any(
        call.gives(name) for call in context.trace.calls if call.name.endswith("Accelerator") for name in settings
    )


@check("TRN718")
def _steps_of_a_plain_schedule(context: Context) -> Iterator[Hit]:
    """Schedules that count epochs and step with each batch, or the other way around."""
    innermost = {call.loops[-1] for call in context.trace.methods("backward") if call.reached and call.loops}
    epochs = {loop.node: count for loop in context.trace.iterations for over in makers(loop.over)
              for count in over.arguments[-1:] if over.name == "range"}  # fmt: skip
    for step in context.trace.methods("step") if not context.trace.methods("prepare") else ():
        loop = step.loops[-1] if step.reached and step.loops else None
        for schedule in (maker for maker in makers(step.receiver) if is_scheduler(maker.name)):
            count = schedule.argument("T_max", 1)
            outer = epochs.get(step.loops[-2]) if loop in innermost and step.loops[1:] else None
            alike = outer is count or getattr(outer, "name", 0) == getattr(count, "name", 1)
            alike |= constant(outer) == constant(count) is not None
            if schedule.called == "CosineAnnealingLR" and count and outer and alike and not step.guards:
                yield Hit(step.module, step.node, {"scheduler": schedule.called}, variant="per batch")
            inside_of = any(loop in back.loops[:-1] for back in context.trace.methods("backward"))
            if schedule.called == "OneCycleLR" and schedule.argument("steps_per_epoch", 4) and inside_of:
                yield Hit(step.module, step.node, {"scheduler": schedule.called}, variant="per epoch")


@check("DDP639")
def _arguments_of_the_processes(context: Context) -> Iterator[Hit]:
    """``spawn(train, args=(rank, size))``, where spawn() itself passes the rank first."""
    for call in context.trace.named("torch.multiprocessing.spawn", "torch.multiprocessing.spawn.spawn"):
        passed = call.argument("args", 1)
        for function in options(call.argument("fn", 0)):
            if isinstance(function, Function) and isinstance(passed, Collection) and not passed.open and call.reached:
                count, most = 1 + len(passed.items) + bool(function.owner), len(function.positional)
                least = most - len(function.node.args.defaults)
                if not function.node.args.vararg and not least <= count <= most:
                    shown: dict[str, object] = {"call": function.name, "given": count, "taken": most}
                    yield Hit(call.module, call.node, shown, variant="arguments")
