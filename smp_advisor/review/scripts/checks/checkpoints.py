"""Checkpoints that the script itself loads again: the names of their parameters, and the device they are loaded to."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.values import (
    Constant,
    Instance,
    Item,
    Mapping,
    Member,
    Operation,
    Result,
    options,
    same,
    something,
)
from smp_advisor.review.scripts.checks.outputs import in_model_folder
from smp_advisor.review.scripts.checks.parallel import REPLICATING, reached_accelerators
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import PROCESSES, elements_of, of_counted_processes, owner_kind
from smp_advisor.review.scripts.queries import constant, derivation, makers, mentions, origins
from smp_advisor.review.scripts.releases import span_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.findings.finding import Severity
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
    if any(_RENAMES.search(module.source.text) for module in context.trace.modules):
        return  # the script changes names, or a launcher chooses another wrapper
    texts = "".join(module.source.text for module in context.trace.modules)
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
    texts = "".join(module.source.text for module in context.trace.modules)
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
    if any("safe_globals" in module.source.text for module in context.trace.modules) or not loads:
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
