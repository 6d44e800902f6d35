"""Gradients and updates that are not what the script seems to compute: not averaged, scaled, frozen, or misgrouped."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import (
    Argument,
    Constant,
    Instance,
    Item,
    Mapping,
    Member,
    Operation,
    Result,
    options,
)
from smp_advisor.review.scripts.checks.arguments import passed
from smp_advisor.review.scripts.checks.parallel import (
    REPLICATING,
    by_framework,
    joins,
    parallel_wraps,
    without_gradients,
    wrapped_by,
)
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.checks.sharding import FSDP, in_place, inside, is_whole, same
from smp_advisor.review.scripts.conditions import Reaching
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import PROCESSES, elements_of, framework_runs
from smp_advisor.review.scripts.queries import (
    argument_node,
    constant,
    derivation,
    makers,
    scales,
    updates,
)
from smp_advisor.review.scripts.releases import span_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.findings.finding import Severity
    from smp_advisor.review.reading.trace import Call, Guard, Store
    from smp_advisor.review.reading.values import Value


def _fsdp1(context: Context) -> list[Call]:
    return [call for call in context.trace.named(*FSDP) if call.reached and not in_place(call)]


def _fsdp2(context: Context) -> list[Call]:
    return [call for call in context.trace.named(*FSDP) if call.reached and in_place(call)]


def _without_average(call: Call, wraps: list[Call]) -> bool:
    """Return whether the call is surely in ``no_sync`` of a wrapped model."""
    for value in call.contexts:
        if isinstance(value, Result) and value.call.method == "no_sync" and wrapped_by(value.call.receiver, wraps):
            return True
    return False


@check("DDP614")
def _averaged_once(context: Context) -> Iterator[Hit]:
    wraps = parallel_wraps(context)
    if not wraps or context.trace.methods("all_reduce", "all_reduce_coalesced", "reduce_gradients") or joins(context):
        return
    backwards = [call for call in context.trace.methods("backward") if call.reached and call.loops]
    steps = any(step.reached and step.loops for step, _ in updates(context.trace))
    if backwards and steps and all(_without_average(call, wraps) for call in backwards):
        yield Hit(backwards[0].module, backwards[0].node)
    moves = [call for call in context.trace.methods("cpu", "cuda", "to") if call.reached]
    moves = [call for call in moves if (wrap := wrapped_by(call.receiver, wraps)) and wrap.name in REPLICATING]
    trained = {loop for call in backwards for loop in call.loops} - {loop for wrap in wraps for loop in wrap.loops}
    for call in moves:
        away = call.method == "cpu" or constant(next(iter(call.arguments), None)) == "cpu"
        back = any(peer.order > call.order and peer.method != "cpu" and not exclusive(peer, call) for peer in moves)
        later = any(step.reached and step.order > call.order for step in context.trace.methods("backward"))
        if away and back and (later or trained & {*call.loops}):
            yield Hit(call.module, call.node, {"call": call.module.text(call.node)}, variant="moved")
    switches = [store for store in context.trace.stores if store.node.attr == "require_backward_grad_sync"]
    if switches and steps and all(constant(store.value) is False for store in switches):
        yield Hit(switches[0].module, switches[0].node)


@check("DDP615")
def _frozen_before_wrapping(context: Context) -> Iterator[Hit]:
    wraps = [call for call in parallel_wraps(context) if call.name in REPLICATING]
    finds = [wrap for wrap in wraps if constant(wrap.argument("find_unused_parameters", 6)) is True]
    trains = any(call.reached for call in context.trace.methods("backward"))
    for store in context.trace.stores if wraps and trains and not finds else ():
        frozen = store.node.attr == "requires_grad" and constant(store.value) is False
        for wrap in wraps if frozen else ():
            if store.order > wrap.order and _is_parameter_of(store.owner, [wrap]) and not _freezes_all(store, wrap):
                yield Hit(store.module, store.node, {"wrapper": "DistributedDataParallel"})
                break

    attached = {store.node.attr: store.order for store in context.trace.stores}
    for call in context.trace.methods("requires_grad_") if wraps and trains and not finds else ():
        off = constant(call.argument("requires_grad", 0)) is False
        name = call.receiver.name if isinstance(call.receiver, Member) else ""
        if attached.get(name, -1) > min(wrap.order for wrap in wraps):
            continue  # a module that came after the wrapper, which does not wait for its gradients
        for wrap in wraps if off and call.reached else ():
            of_wrap = _is_part_of(call.receiver, [wrap]) or _is_parameter_of(call.receiver, [wrap])
            if call.order > wrap.order and of_wrap and wrapped_by(call.receiver, [wrap]) is None:
                yield Hit(call.module, call.node, {"wrapper": "DistributedDataParallel"})


def _freezes_all(store: Store, wrap: Call) -> bool:
    """Return whether a loop freezes every parameter: a teacher, which no backward pass goes through."""
    statement = store.module.parent(store.node)
    loop = store.module.parent(statement) if statement is not None else None
    makers_of_all = [part.call for part in derivation(store.owner) if isinstance(part, Result)]
    every_parameter = any(call.method == "parameters" and wrapped_by(call.receiver, [wrap]) for call in makers_of_all)
    return isinstance(loop, ast.For) and every_parameter


def _is_part_of(owner: Value | None, wraps: list[Call]) -> bool:
    """Return whether an object is a wrapped model or a module inside of it."""
    for _ in range(6):
        if owner is not None and wrapped_by(owner, wraps) is not None:
            return True
        owner = owner.owner if isinstance(owner, (Item, Member)) else None
    return False


def _is_parameter_of(value: Value | None, wraps: list[Call]) -> bool:
    """Return whether the value is an element of ``model.parameters()`` or of a part of the model."""
    for part in derivation(value):
        listed = isinstance(part, Result) and part.call.method in ("parameters", "named_parameters")
        if listed and isinstance(part, Result) and _is_part_of(part.call.receiver, wraps):
            return True
    return False


_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")


@check("DDP616")
def _clipped_unscaled(context: Context) -> Iterator[Hit]:
    if by_framework(context) or context.libraries.smp_v1 or context.trace.methods("unscale_"):
        return
    for step in context.trace.methods("step"):
        switches = [switch for maker in makers(step.receiver) if (switch := argument_node(maker, "enabled"))]
        scaled = {maker.called for maker in makers(step.receiver)} == {"GradScaler"} and "False" not in map(
            ast.unparse, switches
        )
        needed = "" if scales(step.receiver) or not switches else f"where `{ast.unparse(switches[0])}` is true"
        for call in context.trace.named(*_CLIPS) if step.reached and scaled else ():
            if call.reached and step.loops[-1:] == call.loops[-1:] and step.order > call.order:
                yield Hit(call.module, call.node, needed=needed)


@check("DDP616")
def _clipped_before_the_step(context: Context) -> Iterator[Hit]:
    for call in context.trace.named(*_CLIPS):
        steps = [step.order for step, _ in updates(context.trace) if step.loops and step.loops == call.loops]
        backs = [back.order for back in context.trace.methods("backward") if back.loops == call.loops]
        measures = re.search(r"\binf\b", ast.unparse(call.node))  # clips nothing: the norm is logged
        if call.reached and not measures and steps and backs and min(backs) < max(steps) < call.order:
            yield Hit(call.module, call.node, variant="late")


def _with_items(call: Call) -> Iterator[ast.AST]:
    for node in call.module.around(call.node):
        yield from (item.context_expr for item in getattr(node, "items", ()))


@check("TRN721")
def _marked_ready_once(context: Context) -> Iterator[Hit]:
    adapts = any(call.name.startswith("peft.") and call.reached for call in context.trace.calls)
    for call in trainer_arguments(context):
        finds = constant(call.argument("ddp_find_unused_parameters")) is True
        option = call.argument("gradient_checkpointing")
        checkpoints = passed(context, call, "gradient_checkpointing") is True or isinstance(option, Argument)
        reentrant = _reentrant(context, call)
        # Trainer looks for them by itself where the model is PEFT's.
        by_default = not call.gives("ddp_find_unused_parameters") and _SEVERAL.search(context.text)
        alone = not call.gives("fsdp") and not call.gives("deepspeed")
        if adapts and checkpoints and alone and ((finds and reentrant is not False) or (by_default and reentrant)):
            severity: Severity | None = ("warning" if by_default else None) if reentrant else "info"
            needed = f"with --{option.name}" if isinstance(option, Argument) else ""
            yield Hit(call.module, call.node, severity=severity, variant="adapter", needed=needed)
    for wrap in parallel_wraps(context):
        looks = constant(wrap.argument("find_unused_parameters", 6)) is True and wrap.name in REPLICATING
        looks = (
            looks
            and not wrap.gives("static_graph")
            and not context.trace.methods("_set_static_graph", "gradient_checkpointing_disable")
        )
        models = inside(wrap.argument("module", 0))
        for call in context.trace.methods("gradient_checkpointing_enable") if looks else ():
            how = call.argument("gradient_checkpointing_kwargs", 0)
            twice = isinstance(how, Mapping) and constant(how.get("use_reentrant")) is True
            own = any(same(model, switched) for model in models for switched in inside(call.receiver))
            if call.reached and twice and own and not exclusive(call, wrap):
                yield Hit(wrap.module, wrap.node, variant="model")


_SEVERAL = re.compile(r"(?i)local_rank|local_process|process_index|world_size|\bddp\b")
"""Names of scripts that run in several processes."""


def _reentrant(context: Context, call: Call) -> bool | None:
    """Whether the checkpoints of a Trainer are reentrant; None if the release decides, which no file pins."""
    how = call.argument("gradient_checkpointing_kwargs")
    entry = next((o for o in options(how) if hasattr(o, "get")), None)
    value = constant(entry.get("use_reentrant")) if entry is not None else None
    span, plain = span_of(context, "transformers"), call.name.startswith("transformers.")
    if value is not None or not isinstance(how, (Constant, type(None))) or span.first >= (5, 0) or not plain:
        return bool(value)
    return True if span.last < (5, 0) else None


@check("TRN745")
def _gradients_of_checkpointed_inputs(context: Context) -> Iterator[Hit]:
    """Adapters in reentrant checkpoints, whose inputs, the output of frozen embeddings, need no gradient."""
    texts = context.text
    adapted = [call for call in context.trace.calls if call.reached and call.called == "get_peft_model"]
    lora = [call for call in context.trace.calls if call.called == "LoraConfig" and not call.gives("modules_to_save")]
    span = span_of(context, "transformers")
    if not adapted or not lora or _INPUTS.search(texts):
        return
    for call in trainer_arguments(context):
        near = [maker for maker in adapted if not exclusive(maker, call)]
        option = call.argument("gradient_checkpointing")
        on = passed(context, call, "gradient_checkpointing") is True or isinstance(option, Argument)
        on &= call.name.startswith("transformers.")
        reentrant = _reentrant(context, call)
        # transformers 5 gives the inputs gradients wherever it checkpoints.
        if on and near and reentrant is not False and span.first < (5, 0):
            node = argument_node(call, "gradient_checkpointing") or call.node
            needed = Reaching(context).needed(Hit(near[0].module, near[0].node))
            needed = needed or (f"with --{option.name}" if isinstance(option, Argument) else "")
            yield Hit(call.module, node, severity="error" if span.last < (5, 0) else "info", needed=needed)


_INPUTS = re.compile(
    r"require_grads|require_grad\(|prepare_model|gradient_checkpointing_enable|embed|[Pp]rompt|load_in_|\btrl\b"
    r"|\bwte\b|[\"']shared|token_indices|merge_and_unload"
)
"""Sources of gradients of the inputs: a call, quantization's preparation, adapted embeddings, TRL's trainers."""


@check("SMP327")
def _shards_of_every_rank(context: Context) -> Iterator[Hit]:
    # Whose state is in parts: FSDP's, that of an optimizer in parts, that of DeepSpeed's third stage.
    wraps = _fsdp2(context)
    flat = [wrap for wrap in _fsdp1(context) if not is_whole(wrap.argument("sharding_strategy", 2))]
    first, second = PROCESSES[:2]
    divided = [call for call in context.trace.calls if call.called == "ZeroRedundancyOptimizer"]
    divided = [] if context.trace.methods("consolidate_state_dict") else divided
    third = [call for call in context.trace.named("deepspeed.initialize") if _third_stage(call)]
    # A save on rank 0 alone that nobody gathered for.
    for call in context.trace.named("torch.save") if wraps or flat or divided or third else ():
        if not call.reached or not first.runs(call) or second.runs(call):
            continue
        parts = [part.call for part in derivation(call.argument("obj", 0)) if isinstance(part, Result)]
        gathered = any(part.called in _WHOLE or part.name.endswith("get_model_state_dict") for part in parts)
        places = [part.functions[-1:] for part in parts if part.method == "state_dict"]
        gathering = [gather.functions[-1:] for gather in context.trace.methods("full_tensor") if gather.functions]
        gathered |= any(place in gathering for place in places)
        for part in parts if not gathered else ():
            of_parameters = [group for maker in makers(part.receiver) for group in makers(maker.argument("params", 0))]
            of_optimizer = any(wrapped_by(group.receiver, [*wraps, *flat]) for group in of_parameters)
            divides = any(maker in divided for maker in makers(part.receiver))
            of_optimizer |= divides or _is_part_of_engine(part.receiver, third)
            inner = any(re.search("GatheredParam|summon_full", ast.dump(item)) for item in _with_items(part))
            if part.method == "state_dict" and not inner and (wrapped_by(part.receiver, wraps) or of_optimizer):
                state = part.module.text(part.node)
                yield Hit(call.module, call.node, {"state": state}, variant="divided" if divides else "shards")
                break


def _is_part_of_engine(value: Value | None, engines: list[Call]) -> bool:
    """Whether it is the engine or the optimizer that ``deepspeed.initialize`` returns, or the model in the engine."""
    owner = value.owner if isinstance(value, Member) and value.name in ("module", "optimizer") else value
    return any(
        isinstance(option, Item)
        and constant(option.key) in (0, 1)
        and any(maker in engines for maker in elements_of(option))
        for option in options(owner)
    )


def _third_stage(call: Call) -> bool:
    """Return whether DeepSpeed divides the parameters, by a configuration in the code."""
    config = call.argument("config") or call.argument("config_params")
    zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
    return call.reached and isinstance(zero, Mapping) and constant(zero.get("stage")) == 3


_WHOLE = ("full_tensor", "gather", "all_gather", "unshard", "optim_state_dict", "full_optim_state_dict")


@check("DDP621")
def _kept_until_the_update(context: Context) -> Iterator[Hit]:
    if re.search(_WRITES_GRADIENTS, context.text):
        return
    policies = [maker for wrap in _fsdp1(context) for maker in makers(wrap.argument("cpu_offload", 3))]
    replaces = any(constant(policy.argument("offload_params", 0)) is True for policy in policies)
    replaces = replaces and not context.trace.methods("no_sync")
    for step, optimizer in updates(context.trace) if not context.libraries.smp_v1 else ():
        delays = _delays(step)
        backs = [back for back in context.trace.methods("backward", "manual_backward") if back.loops == step.loops]
        backs = [back for back in backs if _runs(back) and (back.loops or back.functions == step.functions)]
        skipped = {guard.test for guard in delays} & {guard.test for back in backs for guard in back.guards}
        if delays and replaces and _runs(step) and backs and not skipped:
            numbers = (getattr(node, "value", 0) for node in ast.walk(delays[0].test))
            several = any(type(number) is int and number > 1 for number in numbers)  # an option may be 1
            test = ast.unparse(delays[0].test)[:80]
            severity: Severity | None = None if several else "warning"
            yield Hit(step.module, step.node, {"test": test}, variant="offloaded", severity=severity)
        undelayed = backs and not any(_delays(back) for back in backs)  # others have a pace of their own
        for reset in context.trace.methods("zero_grad") if _runs(step) and (undelayed or not delays) else ():
            text = ast.unparse(reset.node.func.value) if isinstance(reset.node.func, ast.Attribute) else ""
            own = not set(makers(reset.receiver)).isdisjoint(makers(optimizer)) or text in _names_in(step.node)
            own = own and _runs(reset) and reset.loops[-1:] == step.loops[-1:]
            own = own and reset.functions[: len(step.functions)] == step.functions
            between = [back.order for back in backs]
            if delays:
                inner = set(ast.walk(_unit(step) or step.node))
                always = {(guard.test, guard.holds) for guard in reset.guards if guard.test in inner}
                always -= {(guard.test, guard.holds) for guard in step.guards}
                alike = [ast.dump(g.test) for g in reset.guards] == [ast.dump(g.test) for g in step.guards]
                alike = alike and not _rebound(_unit(step), reset.node, step)
                dropped = alike and any(reset.order < order < step.order for order in between)
                if own and (dropped or (not always and not _delays(reset))):
                    values: dict[str, object] = {"test": ast.unparse(delays[0].test)[:80]}
                    variant = "dropped" if dropped else "accumulation"
                    yield Hit(reset.module, reset.node, values, variant=variant)
                continue
            used = step.order < reset.order < min(between, default=0)
            alike = reset.loops == step.loops and [g.test for g in reset.guards] == [g.test for g in step.guards]
            last = max((order for order in between if order < step.order), default=None)
            late = bool(between) and last is None and not used and not min(between) < reset.order < max(between)
            if step.loops and alike and own and (late or (last is not None and last < reset.order < step.order)):
                yield Hit(reset.module, reset.node, {"test": step.module.text(step.node)[:80]}, variant="update")


def _runs(call: Call) -> bool:
    return call.reached or framework_runs(call)


def _rebound(unit: ast.AST | None, first: ast.Call, step: Call) -> bool:
    """Return whether a line between two calls binds a name of the last one's conditions."""
    names = {name for guard in step.guards for name in _names_in(guard.test)}
    places = (node for node in ast.walk(unit) if isinstance(node, (ast.Name, ast.Attribute))) if unit else ()
    stores = (node for node in places if isinstance(node.ctx, ast.Store))
    return any(first.lineno < node.lineno < step.node.lineno and ast.unparse(node) in names for node in stores)


def _names_in(node: ast.AST) -> set[str]:
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))}


def _unit(call: Call) -> ast.AST | None:
    """Return what runs once per batch around a call: the innermost loop, or the function that a framework calls."""
    return call.loops[-1] if call.loops else call.functions[-1].node if call.functions else None


_WRITES_GRADIENTS = r"\.grad\s*=(?!=|\s*None)|\.grad(?:\.data)?\.(?:add|copy)_\(|_foreach_|setattr\("


def _delays(call: Call) -> list[Guard]:
    """Return the conditions around a call in a loop that count its batches."""
    inner = set(ast.walk(unit)) if (unit := _unit(call)) else set()
    return [guard for guard in call.guards if guard.test in inner and _counts_batches(guard.value)]


def _counts_batches(value: Value) -> bool:
    """Return whether a condition holds for some batches only: ``(number + 1) % accumulation == 0``."""
    return any(isinstance(part, Operation) and part.operator == "Mod" for part in derivation(value))


_DIVIDES = re.compile(r"accum\w*\)|/ *\w*acc|grad\.(?:div_|mul_)|grad */=")


@check("DDP642")
def _mean_of_the_batches(context: Context) -> Iterator[Hit]:
    """Accumulated losses that nothing divides by their number."""
    for step, _ in updates(context.trace) if not by_framework(context) and not context.libraries.smp_v1 else ():
        delays = _delays(step) if step.reached and step.loops else []
        resets = [reset for reset in context.trace.methods("zero_grad") if reset.loops[-1:] == step.loops[-1:]]
        delays = delays if all(_delays(reset) for reset in resets) else []
        for back in context.trace.methods("backward") if delays else ():
            loss = back.receiver if not back.arguments else back.arguments[0]
            divided = any(isinstance(part, Operation) and part.operator in ("Div", "Mult") for part in derivation(loss))
            always = back.reached and back.loops == step.loops and not _delays(back)
            if always and not divided and not _DIVIDES.search(back.module.source.text):
                yield Hit(back.module, back.node, {"test": ast.unparse(delays[0].test)[:80]})


@check("DDP646")
def _collectives_in_the_loss(context: Context) -> Iterator[Hit]:
    wraps = parallel_wraps(context)
    text = context.text
    backs = [back for back in context.trace.methods("backward") if back.reached]
    losses = [{id(part) for part in derivation(back.receiver)} for back in backs]
    hooks = [function for function in context.trace.functions if function.name == "training_step" and function.home]
    ends = [end for function in hooks for end in context.trace.results.get(function.node, ())]
    parts = [derivation(end.get("loss") if isinstance(end, Mapping) else end) for end in ends]
    losses += [set(map(id, part)) for part in parts]
    calls = context.trace.named("torch.distributed.all_gather", "torch.distributed.all_gather_into_tensor")
    for call in calls if (wraps or hooks) and not _KEEPS_GRADIENTS.search(text) else ():
        sources = [part.call for part in derivation(call.argument("tensor", 1)) if isinstance(part, Result)]
        of_hook = any(function.node in {hook.node for hook in hooks} for function in call.functions)
        of_model = not any(source.called in ("detach", "argmax") for source in sources) and any(
            (wrapped_by(source.receiver, wraps) or (of_hook and _is_module(source.receiver)))
            and not without_gradients(source)
            for source in sources
        )
        target = call.argument("tensor_list", 0) or call.argument("output_tensor", 0)
        name = re.escape(ast.unparse(call.node.args[0])) if call.node.args else r"\w+"
        changed = re.search(rf"\b{name}(?:\[[^]\n]+\] *=(?!=)|\.(?:insert|append|pop)\()", text)
        if (
            (call.reached or of_hook)
            and of_model
            and not changed
            and not without_gradients(call)
            and any(id(target) in parts for parts in losses)
        ):
            yield Hit(call.module, call.node, variant="gathered")
    for call in context.trace.named("torch.distributed.all_reduce") if wraps or ".grad" not in text else ():
        tensor = call.argument("tensor", 0)
        in_place = any(division.receiver is tensor for division in context.trace.methods("div_"))
        for back in backs:
            loss = back.receiver
            divided = isinstance(loss, Operation) and loss.operator == "Div" and loss.operands[0] is tensor
            divided |= in_place and loss is tensor
            if call.reached and divided and call.order < back.order and call.loops == back.loops:
                yield Hit(call.module, call.node, variant="reduced")


def _is_module(value: Value | None) -> bool:
    """Return whether a value is a module of the script, or a layer of torch."""
    return isinstance(value, Instance) or any(maker.name.startswith("torch.nn.") for maker in makers(value))


# The last: the tensor of the rank itself, next to those of the others.
_KEEPS_GRADIENTS = re.compile(r"distributed\.nn|autograd\.Function|requires_grad|cat\(\[\w+(?:\] *\+|, *\*)")
