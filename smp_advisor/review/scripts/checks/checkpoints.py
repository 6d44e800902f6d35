"""Checkpoints: which ranks save them, which state, under which names and to which device it is loaded again."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import (
    Argument,
    Collection,
    Constant,
    Instance,
    Item,
    Mapping,
    Member,
    Operation,
    Result,
    Value,
    options,
    same,
    something,
)
from smp_advisor.review.scripts.checks.outputs import in_model_folder
from smp_advisor.review.scripts.checks.parallel import (
    REPLICATING,
    parallel_wraps,
    reached_accelerators,
    unread,
    wrapped_by,
)
from smp_advisor.review.scripts.checks.sharding import in_place
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import PROCESSES, elements_of, of_counted_processes, owner_kind
from smp_advisor.review.scripts.queries import (
    constant,
    derivation,
    guarded_by,
    is_scheduler,
    is_wrapped_model,
    is_wrapped_optimizer,
    makers,
    mentions,
    origins,
    rank_conditions,
    ranks,
    updates,
)
from smp_advisor.review.scripts.releases import span_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.findings.finding import Severity
    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value


def _loaded(context: Context, load: Call) -> list[tuple[Call, object]]:
    """Return the calls of load_state_dict with what was loaded, each with the key of its part; None for all."""
    parts: list[tuple[Call, object]] = []
    for call in context.trace.methods("load_state_dict"):
        for option in options(call.argument("state_dict", 0)) if call.reached else ():
            if isinstance(option, Result) and option.call is load:
                parts.append((call, None))
            elif isinstance(option, Item) and load in elements_of(option) and isinstance(option.key, Constant):
                parts.append((call, option.key.value))
    return parts


def own_checkpoints(context: Context) -> Iterator[tuple[Call, Call, list[tuple[Call, object]]]]:
    """Saves, each with a load of the same file, by its path or by what is in it, and what is loaded of it."""
    saves = [call for call in context.trace.named("torch.save") if call.reached]
    for load in context.trace.named("torch.load") if saves else ():
        parts = _loaded(context, load) if load.reached else []
        names = {name for _, name in parts if name is not None}
        for save in saves if parts else ():
            entries = [set(state.entries) for state in options(save.argument("obj", 0)) if isinstance(state, Mapping)]
            literal = all(isinstance(path, Constant) for both in _paths(save, load) for path in both)
            by_names = len(names) > 1 and any(names <= keys for keys in entries) and not literal
            if by_names or _same_file(save, load):
                yield save, load, parts


def _paths(save: Call, load: Call) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    return something(save.argument("f", 1) or Constant(None)), something(load.argument("f", 0) or Constant(""))


def _same_file(save: Call, load: Call) -> bool:
    written, read = _paths(save, load)
    return any(_same_path(first, second) for first in written for second in read)


def _same_path(first: Value, second: Value) -> bool:
    """Return whether two paths are certainly the same, also where each is joined of the same parts."""
    if isinstance(first, Result) and isinstance(second, Result) and first.call.name == second.call.name:
        parts = first.call.arguments, second.call.arguments
    elif isinstance(first, Operation) and isinstance(second, Operation) and first.operator == second.operator:
        parts = first.operands, second.operands
    else:
        return same(first, second)
    alike = len(parts[0]) == len(parts[1]) > 0
    return same(first, second) or (alike and all(_same_path(left, right) for left, right in zip(*parts, strict=True)))


def _prefix_at(context: Context, call: Call) -> str | None:
    """Return the prefix of the object of a method; None if it may be one of several there."""
    prefixes = {_prefix(peer.receiver) for peer in context.trace.methods(call.method) if peer.node is call.node}
    return prefixes.pop() if len(prefixes) == 1 else None


def _prefix(value: Value | None, depth: int = 0) -> str | None:
    """Prefix by wrappers of the names of a model's parameters; None if it is not certain."""
    prefixes = set[str | None]()
    for origin in origins(value) if depth < 6 else ():
        if isinstance(origin, Instance):
            prefixes.add("")
        elif isinstance(origin, Member) and origin.name in ("module", "_orig_mod"):
            outer = _prefix(origin.owner, depth + 1)
            mark = f"{origin.name}."
            prefixes.add(outer.removeprefix(mark) if outer is not None and outer.startswith(mark) else None)
        elif isinstance(origin, Result) and origin.call.name in _WRAPPERS and origin.call.arguments:
            inner = _prefix(origin.call.arguments[0], depth + 1)
            prefixes.add(None if inner is None else _WRAPPERS[origin.call.name] + inner)
        elif isinstance(origin, Result) and (
            origin.call.name.startswith(("torch.nn.", "torchvision.models.", "timm."))
            or origin.call.method in ("from_pretrained", "from_config", "unwrap_model")
        ):
            prefixes.add("")
        else:
            prepares = [call for call in elements_of(origin) if call.method == "prepare"]
            prefixes.add("module." if prepares and owner_kind(prepares[0].receiver) == "accelerate" else None)
    return prefixes.pop() if len(prefixes) == 1 else None


_WRAPPERS = dict.fromkeys((*REPLICATING, "torch.nn.DataParallel"), "module.") | {"torch.compile": "_orig_mod."}
_RENAMES = re.compile(
    r"[\"']_?(?:module|orig_mod)\b|removeprefix|consume_prefix|startswith\(|fsdp|deepspeed", re.IGNORECASE
)


@check("DDP624")
def _loaded_under_the_same_names(context: Context) -> Iterator[Hit]:
    if _RENAMES.search(context.text):
        return  # the script changes names, or a launcher chooses another wrapper
    texts = context.text
    for save, load, parts in own_checkpoints(context):
        for call, name in parts:
            for state in options(save.argument("obj", 0)):
                saved = state.get(str(name)) if isinstance(state, Mapping) and name is not None else state
                for maker in makers(saved):
                    written = _prefix_at(context, maker) if maker.method == "state_dict" else None
                    expected = _prefix_at(context, call)
                    unwraps = written is not None and "module." in written and ".module" in texts
                    if written is not None and expected is not None and written != expected and not unwraps:
                        values: dict[str, object] = {
                            "load": call.module.text(call.node.func),
                            "saved": maker.module.text(maker.node.func),
                            "names": f"{written}weight",
                            "expected": f"{expected}weight",
                        }
                        severity: Severity | None = None if _same_file(save, load) else "warning"
                        yield Hit(load.module, call.node, values, severity=severity, variant="resumed")
                        return
    saved_names = [
        (save, part)
        for save in context.trace.named("torch.save")
        for part in (option.call for option in derivation(save.argument("obj", 0)) if isinstance(option, Result))
        if save.reached and part.method == "state_dict" and _prefix_at(context, part)
        if in_model_folder(save.argument("f", 1))
    ]
    if saved_names and not any(call.reached for call in context.trace.methods("load_state_dict")):
        save, part = saved_names[0]
        shown: dict[str, object] = {
            "saved": part.module.text(part.node.func),
            "names": f"{_prefix_at(context, part)}weight",
        }
        yield Hit(save.module, save.node, shown, variant="elsewhere")


@check("DDP625")
def _loaded_to_its_own_device(context: Context) -> Iterator[Hit]:
    """Yield a tensor returns to the device that it was saved from: cuda:0, if rank 0 saved it."""
    replicas = [call for call in context.trace.named(*REPLICATING) if call.reached] or reached_accelerators(context)
    texts = context.text
    mapped = [call for call in context.trace.named("torch.load") if call.gives("map_location", 1)]
    starts = context.trace.named("torch.distributed.init_process_group")
    backends = {constant(start.argument("backend", 0)) for start in starts}
    on_gpus = reached_accelerators(context) or backends == {"nccl"} or ("cuda" in texts and backends != {"gloo"})
    if (
        not replicas
        or not on_gpus
        or "CUDA_VISIBLE_DEVICES" in texts
        or context.libraries.smp_v1
        or context.libraries.xla
    ):
        return
    for load in mapped:
        first_gpu = constant(load.argument("map_location", 1)) == "cuda:0"
        single = [guard for guard in load.guards if guard.holds is isinstance(guard.test, ast.UnaryOp)]
        alone = of_counted_processes(load) or any(mentions(guard.test, "dist") for guard in single)
        if first_gpu and load.reached and PROCESSES[1].runs(load) and not alone:
            yield Hit(load.module, load.node, variant="fixed")
            return
    for save, load, _ in own_checkpoints(context):
        parts = [part.call for part in derivation(save.argument("obj", 0)) if isinstance(part, Result)]
        states = [part for part in parts if part.method == "state_dict"]
        moved = any(part.called in ("cpu", "numpy") for part in parts)
        if states and not moved and not mapped and PROCESSES[1].runs(load):
            yield Hit(load.module, load.node, variant="own")
            return
    for load in context.trace.named("torch.load") if not mapped else ():
        by_all = load.reached and not load.loops and PROCESSES[1].runs(load)
        if by_all and re.search(r"checkpoint|ckpt|resume", load.module.text(load.node)):
            yield Hit(load.module, load.node, variant="other")
            return


@check("SMP009")
def _state_of_the_optimizer(context: Context) -> Iterator[Hit]:
    """Checkpoints that a run goes on from, with an epoch and weights, and without the moments of the optimizer."""
    text = context.text
    optimizers = [maker for _, optimizer in updates(context.trace) for maker in makers(optimizer)]
    moments = [
        maker for maker in optimizers if "Adam" in maker.called and not re.search(r"opt\w*\.(?:load_)?state_d", text)
    ]
    paces = [maker for step in context.trace.methods("step") for maker in makers(step.receiver)]
    paces = [
        maker for maker in paces if is_scheduler(maker.name) and not re.search(r"last_epoch|sched\w*\.\w*state_d", text)
    ]
    missing = moments or paces
    for save, _, parts in own_checkpoints(context) if missing and not unread(context) else ():
        for state in options(save.argument("obj", 0)):
            names = list(map(str, state.entries)) if isinstance(state, Mapping) and state.complete else []
            number = next((name for name in names if re.search("epoch|step|iter", name)), "")
            if number and parts and f'["{number}"]' in parts[0][0].module.source.text.replace("'", '"'):
                shown: dict[str, object] = {"entry": number, "optimizer": missing[0].called}
                yield Hit(save.module, save.node, shown, variant="optimizer")


_SAFE_BY_DEFAULT = (2, 6)


@check("SMP007")
def _state_that_is_loaded_again(context: Context) -> Iterator[Hit]:
    """torch.load reads tensors and plain data only, from the release on in which weights_only is the default."""
    span = span_of(context, "torch")
    if span.last < _SAFE_BY_DEFAULT or context.libraries.smp_v1 or context.libraries.xla:
        return
    loads = [call for call in context.trace.named("torch.load") if call.reached and not call.gives("weights_only")]
    own = [load for _, load, _ in own_checkpoints(context)]
    loads = [load for load in loads if load in own]
    if "safe_globals" in context.text or not loads:
        return
    severity: Severity | None = "error" if span.first >= _SAFE_BY_DEFAULT else None
    for call in context.trace.named("torch.save"):
        for state in options(call.argument("obj", 0)):
            entries = state.values().items() if isinstance(state, Mapping) else ()
            objects = [str(key) for key, value in entries if _is_object(value)]
            if call.reached and objects:
                yield Hit(loads[0].module, loads[0].node, {"entry": objects[0]}, severity=severity)
                return


def _is_object(value: Value) -> bool:
    """Return whether a value of a checkpoint is neither a tensor nor plain data: the options of the script, a class."""
    parsed = isinstance(value, Result) and value.call.method in ("parse_args", "parse_known_args")
    return parsed or (isinstance(value, Instance) and not any(value.cls.ancestors()))


_ONE_PROCESS = frozenset({"smp.rank", "smp.local_rank", "smp.mp_rank", "smp.pp_rank"})
_ONE_PART = frozenset({"smp.tp_rank"})
_SAVES = ("smp.save", "smp.save_checkpoint")


@check("SMP126", "smp_torch")
def _saving_ranks(context: Context) -> Iterator[Hit]:
    settings = context.settings
    if not (settings.tensor_parallel or settings.pipelined):
        return
    reported: set[ast.AST] = set()
    states = [
        call
        for call in context.trace.methods("state_dict", "local_state_dict")
        if call.receiver is not None and (is_wrapped_model(call.receiver) or is_wrapped_optimizer(call.receiver))
    ]
    for call in [*context.trace.named(*_SAVES), *states]:
        conditions = rank_conditions(call)
        if settings.tensor_parallel and "smp.dp_rank" in conditions and not conditions & {"smp.rank", "smp.rdp_rank"}:
            nodes = [node for guard in call.guards for node in ast.walk(guard.test) if isinstance(node, ast.Call)]
            place = next((node for node in nodes if getattr(node.func, "attr", "") == "dp_rank"), call.node)
            if place not in reported:
                reported.add(place)
                yield Hit(call.module, place, _values(call, "smp.dp_rank()"))
            continue
        # All ranks of a replica take part in state_dict. A state that was gathered before is written by one.
        wrong = sorted(conditions & (_ONE_PROCESS if call.method == "state_dict" else _ONE_PROCESS | _ONE_PART))
        partial = constant(call.argument("partial", 2))
        local = partial is True or "local_state_dict" in call.module.text(call.node)
        if wrong and partial is not False and (local or call.name != "smp.save"):
            yield Hit(call.module, call.node, _values(call, f"{wrong[0]}()"))


def _values(call: Call, rank: str) -> dict[str, object]:
    return {"call": call.module.text(call.node.func), "rank": rank}


@check("SMP127", "smp_torch")
def _optimizer_state(context: Context) -> Iterator[Hit]:
    settings = context.settings
    if not (settings.tensor_parallel or settings.shard_optimizer_state):
        return
    technique = "tensor parallelism" if settings.tensor_parallel else "shard_optimizer_state"
    for call in context.trace.methods("state_dict"):
        other_jobs = guarded_by(call, "shard", "tp_size", "tensor_parallel")
        if call.receiver is None or not is_wrapped_optimizer(call.receiver) or other_jobs:
            continue
        yield Hit(call.module, call.node, {"technique": technique}, variant="state dict")
    for call in context.trace.named("smp.save_checkpoint"):
        optimizer = call.argument("optimizer", 4)
        if constant(call.argument("partial", 2)) is False and optimizer is not None and is_wrapped_optimizer(optimizer):
            yield Hit(call.module, call.node, {"technique": technique}, variant="checkpoint")


_GUARDS = ("rank", "main_process", "is_main", "is_master", "master_process", "primary", "zero_first", "local_main")


def _by_rank(call: Call) -> bool:
    """Return whether a condition may select ranks: by its words, or as a number that must be 0."""
    return any(
        mentions(guard.test, *_GUARDS) or _is_zero(guard.test) or _set_by_rank(call.module, guard.test)
        for guard in call.guards
    )


def _set_by_rank(module: Module, test: ast.expr) -> bool:
    """``args.save`` after ``args.save = args.logs and is_master(args)``."""
    names = {ast.unparse(part) for part in ast.walk(test) if isinstance(part, (ast.Name, ast.Attribute))}
    return any(
        mentions(node.value, *_GUARDS) and any(ast.unparse(target) in names for target in node.targets)
        for node in module.all(ast.Assign)
    )


def _is_zero(test: ast.expr) -> bool:
    """``self.gpu_id == 0``, also as a part of a condition; but not ``epoch % 10 == 0``."""
    return any(
        isinstance(part, ast.Compare)
        and isinstance(part.left, (ast.Name, ast.Attribute))
        and isinstance(part.comparators[0], ast.Constant)
        and part.comparators[0].value == 0
        for part in ast.walk(test)
    )


@check("DDP607")
def _one_rank_writes(context: Context) -> Iterator[Hit]:
    wraps = parallel_wraps(context)
    for call in context.trace.named("torch.save") if wraps else ():
        path = call.argument("f", 1)
        if not call.reached or path is None or not _same_on_all(path) or _by_rank(call) or rank_conditions(call):
            continue
        if any(mentions(argument, "rank") for argument in call.node.args[1:]):
            continue
        saved = call.arguments[0] if call.arguments else call.keywords.get("obj")
        state = any(_is_state(part, wraps) for part in derivation(saved))
        if state and not any(exclusive(call, wrap) for wrap in wraps):
            yield Hit(call.module, call.node)


def _is_state(value: Value, wraps: list[Call]) -> bool:
    if not isinstance(value, Result) or value.call.method != "state_dict":
        return False
    owner = value.call.receiver
    if isinstance(owner, Member) and owner.name == "module":
        owner = owner.owner
    wrap = wrapped_by(owner, wraps)
    return wrap is not None and not in_place(wrap)


def _same_on_all(path: Value, depth: int = 0) -> bool:
    """Return whether the path is certainly the same on every rank."""
    if depth > 6 or ranks(path):
        return False
    if isinstance(path, (Constant, Argument)):
        return not (isinstance(path, Argument) and "rank" in path.name)
    if isinstance(path, Operation):
        return all(_same_on_all(part, depth + 1) or _counts(part) for part in path.operands)
    if isinstance(path, Collection):
        return all(_same_on_all(part, depth + 1) for part in path.items)
    if isinstance(path, Result):
        joins = path.call.name in ("os.path.join", "pathlib.Path", "str", "os.getenv") or path.call.method == "format"
        return joins and all(_same_on_all(part, depth + 1) or _counts(part) for part in path.call.arguments)
    return False


def _counts(value: Value) -> bool:
    """Return whether `value` is a number of an epoch or step."""
    if isinstance(value, Item):
        value = value.owner
        return isinstance(value, Result) and value.call.name == "range"
    return False
