"""Ranks at different places of the program: what one rank calls and the others do not, or much later."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

from smp_advisor.core.files import table
from smp_advisor.review.reading.fragment import ELSEWHERE, bindings
from smp_advisor.review.reading.trace import Departure
from smp_advisor.review.reading.values import (
    Argument,
    Collection,
    Constant,
    Mapping,
    Operation,
    Result,
    Unknown,
    options,
    same,
    something,
)
from smp_advisor.review.scripts.checks.data import loaders
from smp_advisor.review.scripts.checks.parallel import (
    REPLICATING,
    parallel_wraps,
    reached_accelerators,
    without_gradients,
    wrapped_by,
)
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.checks.sharding import FSDP, in_place, shards
from smp_advisor.review.scripts.checks.updates import parts_of_model
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import (
    PROCESSES,
    Comparison,
    compare,
    elements_of,
    framework_runs,
    in_several_processes,
    met_by_name,
    of_clock,
    of_file,
    of_own_batches,
    owner_kind,
)
from smp_advisor.review.scripts.queries import constant, derivation, makers, mentions, updates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call, Guard
    from smp_advisor.review.reading.values import Value


_GENERATES = ("generate", "sample", "rollout")
_MAY_SHARD = re.compile(r"(?i)deepspeed|fsdp|zero_?[123]\b|Dummy(?:Optim|Scheduler)\b")
_STRATEGIES = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
_PARSERS = ("HfArgumentParser", "TrlParser")
_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")


def comparison(context: Context) -> Comparison:
    """Return the order of the calls in which ranks meet, on rank 0 and rank 1; made once for a script."""
    if "ranks" not in context.memo:
        context.memo["ranks"] = compare(list(_meetings(context)))
    return context.memo["ranks"]  # type: ignore[no-any-return]


def is_sharded_model(context: Context) -> bool:
    """Return whether a model of the script is certainly divided over the ranks."""
    wraps = any(call.reached for call in context.trace.named(*FSDP))
    switches = [
        call.argument(name) for call in trainer_arguments(context) for name in ("fsdp", "deepspeed", "fsdp_config")
    ]
    by_arguments = any(_is_set(option) for value in switches for option in options(value))
    strategies = any(call.name.endswith(_STRATEGIES) for call in context.trace.calls)
    by_name = any(
        constant(call.argument("strategy")) in ("fsdp", "deepspeed")
        for call in context.trace.calls
        if call.name.endswith((".Fabric", ".Trainer"))
    )
    return wraps or by_arguments or strategies or by_name or shards(context, *reached_accelerators(context))


def _is_set(value: Value) -> bool:
    """Return whether a switch is on, by its value or by the default of its option."""
    source = value.default if isinstance(value, Argument) else value
    return bool(source.value) if isinstance(source, Constant) else isinstance(source, (Mapping, Result, Collection))


def _meetings(context: Context) -> Iterator[tuple[Call, str, str]]:
    wraps = [call for call in context.trace.named(*REPLICATING, *FSDP) if call.reached]
    sharded = is_sharded_model(context)
    framework = [
        call
        for call in context.trace.methods("prepare", "setup", "setup_module", "prepare_model")
        if owner_kind(call.receiver) in ("accelerate", "fabric")
    ]
    parses = any(call.reached and call.called.endswith(_PARSERS) for call in context.trace.calls)
    texts = context.text
    may_shard = not sharded and "_plugin" not in texts and _MAY_SHARD.search(texts)  # not chosen by the script
    loops = {loop.node for loop in context.trace.iterations if any(call in framework and call.method == "prepare"
             for part in _read_by(loop.over) for call in elements_of(part))}  # fmt: skip
    loops -= {loop for call in context.trace.calls if PROCESSES[1].runs(call) for loop in call.loops}
    for call in context.trace.calls:
        if not call.reached and not framework_runs(call):
            continue
        if call.loops and call.loops[-1] in loops:
            loops.remove(call.loops[-1])
            yield call, "loader", "loader"
        meeting = met_by_name(call, sharded=sharded)
        if meeting is not None:
            yield call, *meeting
        elif not sharded and parses and met_by_name(call, sharded=True) and not PROCESSES[1].runs(call):
            what = "whether the job shards the model, so that ranks which leave this call out stop it (DDP606)"
            context.leave_open(call.module, call.node, what)
        elif may_shard and not PROCESSES[1].runs(call) and (kind := met_by_name(call, sharded=True)):
            yield call, kind[0], "launcher"
        elif wraps or framework or sharded:
            implied = _implied(call, wraps, framework, sharded=sharded)
            if implied is not None:
                yield call, *implied


def _implied(call: Call, wraps: list[Call], framework: list[Call], *, sharded: bool) -> tuple[str, str] | None:
    """Return the collective that a call of a wrapped model, or of its parameters or loss, waits for."""
    if call.name in _CLIPS and call.arguments:
        for maker in makers(call.arguments[0]):
            wrap = wrapped_by(maker.receiver, wraps) if maker.method == "parameters" else None
            if wrap is not None and in_place(wrap):
                return "clip_grad_norm_", "forward"
        return None
    if call.method == "backward":
        source = call.receiver if not call.arguments else call.arguments[0]
        forward = any(
            isinstance(part, Result) and (wrapped_by(part.call.receiver, wraps) is not None
                                          or not set(elements_of(part.call.receiver)).isdisjoint(framework))
            for part in derivation(source)
        )  # fmt: skip
        return ("backward", "backward") if forward else None
    if call.receiver is None or call.function is not None:
        return None
    wrap = wrapped_by(call.receiver, wraps)
    shards_it = wrap is not None and wrap.name not in REPLICATING
    setups = [*elements_of(call.receiver)]
    setups += [setup for outer in setups if outer.method == "unwrap_model" for value in outer.arguments
               for setup in elements_of(value)]  # fmt: skip
    prepared = sharded and any(_may_shard(setup) for setup in setups if setup in framework)
    by_name = call.method and re.search(r"\bmodel\b", call.module.text(call.node.func))  # an argument of a callback
    prepared |= bool(sharded and by_name and isinstance(call.receiver, Unknown) and framework_runs(call))
    if not call.method:
        sends = wrap is not None and not shards_it and _sends_buffers(wrap) and not PROCESSES[1].runs(call)
        return ("forward", "buffers" if sends else "forward") if shards_it or prepared or sends else None
    if (shards_it or prepared) and call.method in _GENERATES:
        return "generate", "forward"
    if shards_it and wrap is not None and not in_place(wrap) and call.method in ("state_dict", "clip_grad_norm_"):
        return call.method, "state" if call.method == "state_dict" else "forward"
    return None


def _read_by(over: Value) -> list[Value]:
    """Return what a loop reads, also by ``enumerate`` or a bar."""
    calls = [option.call for option in options(over) if isinstance(option, Result)]
    counted = [call.arguments[0] for call in calls if call.called in ("enumerate", "tqdm") and call.arguments]
    return [over, *counted]


def _sends_buffers(wrap: Call) -> bool:
    """Return whether DDP certainly broadcasts the buffers of a model in each forward pass, in evaluation too."""
    names = [part.call.name for part in derivation(wrap.argument("module", 0)) if isinstance(part, Result)]
    nodes = [cls.node for model in parts_of_model(wrap.argument("module", 0)) for cls in model.cls.lineage]
    has_buffers = any(_keeps_buffer(part) for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call))
    has_buffers |= any(re.search(r"BatchNorm|models\.(?:\w+\.)?(?:wide_)?resne", name) for name in names)
    return has_buffers and not wrap.gives("broadcast_buffers", 4)


def _keeps_buffer(call: ast.Call) -> bool:
    """Return whether a call of a model's class makes a buffer with values."""
    name, keywords = ast.unparse(call.func), {word.arg: ast.unparse(word.value) for word in call.keywords}
    if "BatchNorm" in name.rpartition(".")[2]:
        return keywords.get("track_running_stats") != "False"
    value = keywords.get("tensor") or ast.unparse(call.args[1] if call.args[1:] else ast.Constant(None))
    return name == "self.register_buffer" and value != "None"


@check("DDP653")
def _bound_on_some_ranks(context: Context) -> Iterator[Hit]:
    """Yield the first argument on all ranks that only a block for some ranks binds."""
    if _BINDS.search(context.text):
        return
    first, second = PROCESSES[:2]
    bound: dict[tuple[ast.AST, str], tuple[set[ast.expr], ast.expr]] = {}
    for call in context.trace.calls:
        unit = call.functions[-1].node if call.functions else call.module.tree
        passed = [*call.node.args, getattr(call.node.func, "value", None)]
        names = [name for name in passed if isinstance(name, ast.Name) and (unit, name.id) in bound]
        if any(getattr(function.node, "decorator_list", ()) for function in call.functions):
            continue
        alone = [guard for guard in call.guards if second.truth(guard.value) is not None]
        if not names and [first.holds(guard) and not second.holds(guard) for guard in alone] != [True]:
            continue
        tests = {outer.test for outer in call.module.around(call.node) if isinstance(outer, (ast.If, ast.IfExp))}
        tests |= {guard.test for guard in call.guards}
        for name in names:
            around, test = bound[unit, name.id]
            caught = any(map(_CATCHES.match, map(ast.unparse, [*call.module.around(call.node)][:-1])))
            if tests <= around and not caught:
                del bound[unit, name.id]
                yield Hit(call.module, name, {"name": name.id, "test": ast.unparse(test)[:80]})
        targets = [*map(ast.unparse, getattr(call.module.statement(call.node), "targets", ()))]
        block = call.module.parent(alone[0].test) if targets and len(alone) == 1 and alone[0].holds else None
        values = call.module.scope.names.values() if block and not call.functions else ()
        # An earlier cell may bind it.
        earlier = any(isinstance(value, Unknown) and str(value.why).endswith(ELSEWHERE) for value in values)
        if isinstance(block, ast.If) and not block.orelse and not earlier:  # the other branch may end the ranks
            times = Counter(bindings(ast.walk(unit)))
            once = [name for name in targets if times[name] == 1]
            bound |= {(unit, name): (tests - {alone[0].test}, alone[0].test) for name in once}


_CATCHES = re.compile(r"try:|with .*suppress")
_BINDS = re.compile(r"import \*|globals\(|exec\(")


def _may_shard(setup: Call) -> bool:
    """Return whether the Fabric of a model has a strategy; one without it does not divide the model."""
    fabrics = [maker for maker in makers(setup.receiver) if maker.name.endswith(".Fabric")]
    return not fabrics or any(fabric.gives("strategy", 1) for fabric in fabrics)


@check("DDP606")
def _called_by_every_rank(context: Context) -> Iterator[Hit]:
    if context.libraries.smp_v1:
        return
    visited: set[ast.AST] = set()
    for meeting in comparison(context).alone:
        if meeting.call.node not in visited:
            visited.add(meeting.call.node)
            text = meeting.call.module.text(meeting.call.node.func)
            yield Hit(meeting.call.module, meeting.call.node, {"call": text}, variant=meeting.why)


_WORK = table("smp_advisor.review.scripts", "data/processes.toml")["unbounded"]


@check("DDP611")
def _waiting_within_the_time_limit(context: Context) -> Iterator[Hit]:
    if context.libraries.smp_v1 or _has_time_limit(context):
        return
    met = comparison(context)
    spans = [(first.call.order, second.call.order, second.call) for first, second in met.pairs]
    shared = [meeting.call for meeting in met.meetings if not meeting.one_sided]
    visited: set[ast.AST] = set()
    for call in context.trace.calls:
        if not visited.isdisjoint((call.node, *call.loops)) or not call.reached or not _is_long(call):
            continue
        if _one_after_another(call):
            visited.add(call.node)
            around: dict[str, object] = {"work": call.module.text(call.node.func), "call": "main_process_first"}
            yield Hit(call.module, call.node, around, severity="info")
            continue
        waits = next((end for start, stop, end in spans if start < call.order < stop), None)
        on = [process.runs(call) for process in met.processes]
        if waits is None and any(on) and not all(on):
            later = [peer for peer in shared if peer.order > call.order or not {*peer.loops}.isdisjoint(call.loops)]
            waits = next(iter(later), None)
        if waits is not None:
            visited |= {call.node, *(call.loops[-1:] if call.method != "map" else ())}
            values: dict[str, object] = {
                "work": call.module.text(call.node.func),
                "call": waits.module.text(waits.node.func),
            }
            yield Hit(call.module, call.node, values, variant="" if call.method in ("map", "generate") else "forward")


def _one_after_another(call: Call) -> bool:
    """Whether a block lets the first rank work while the others wait: ``with accelerator.main_process_first()``."""
    makers_around = [part.call for value in call.contexts for part in options(value) if isinstance(part, Result)]
    return any(maker.method.endswith("main_process_first") for maker in makers_around)


def _has_time_limit(context: Context) -> bool:
    """Return whether the script sets how long ranks wait."""
    limit_names = ("timeout", "ddp_timeout")
    return any(call.argument(name) is not None for call in context.trace.calls if call.reached for name in limit_names)


def _is_long(call: Call) -> bool:
    """Work over a data set: tokenization of all rows, generation for each row."""
    if call.method == "generate":
        return bool(call.loops)
    is_object = call.receiver is not None and not isinstance(call.node.func, ast.Call)  # not ``itemgetter(0)(row)``
    if call.method in ("", "module") and is_object and call.function is None and call.loops:
        over = getattr(call.loops[-1], "iter", None)
        return over is not None and mentions(over, "loader") and without_gradients(call)
    if call.method != "map" or call.receiver is None or call.name:
        return False
    sources = [part.call.name for part in derivation(call.receiver) if isinstance(part, Result)]
    return any(name.startswith(tuple(_WORK["datasets"])) for name in sources) or call.gives("num_proc")


@check("DDP612")
def _same_decision_on_every_rank(context: Context) -> Iterator[Hit]:
    met = comparison(context)
    if context.libraries.smp_v1 or not met.meetings:
        return
    visited: set[ast.AST] = set()
    places: list[tuple[Guard, Call | Departure]] = [
        *((guard, meeting.call) for meeting in met.meetings for guard in meeting.call.guards),
        *((leaving.guard, leaving) for leaving in _leavings(context, met)),
    ]
    for guard, place in places:
        if guard.or_ends:
            continue  # a rank that ends with an error ends the job
        local = "clock" if of_clock(guard.value) else "batches" if _of_batches(context, guard.value) else ""
        local = local or ("file" if isinstance(place, Departure) and of_file(guard.value) else "")
        leaves = isinstance(place, Departure) and not met.alone and _is_of_some_ranks(context, guard)
        local = local or ("rank" if leaves else "")
        if local and guard.test not in visited:
            visited.add(guard.test)
            yield Hit(place.module, guard.test, {"test": ast.unparse(guard.test)[:80]}, variant=local)
    wraps = parallel_wraps(context)
    shared = {maker for wrap in wraps for maker in (wrap, *makers(wrap.argument("module", 0)))}
    steps = [update for update in updates(context.trace) if update[0].reached and wraps]
    for step, optimizer in steps:
        sources = set(makers(optimizer))
        peers = [step, *(peer for peer, owner in steps if peer.loops == step.loops and sources & set(makers(owner)))]
        on = {any(map(process.runs, peers)) for process in PROCESSES}
        models = [makers(group.receiver) for maker in sources for group in makers(maker.argument("params", 0))]
        if step.loops and len(on) == 2 and (not models or any(not shared.isdisjoint(model) for model in models)):
            yield Hit(step.module, step.node, {"test": step.module.text(step.node)}, variant="update")
    for call in context.trace.methods("step"):
        plateau = any(maker.name.endswith(".ReduceLROnPlateau") for maker in makers(call.receiver))
        metric = call.argument("metrics", 0)
        if call.reached and plateau and parallel_wraps(context) and _of_batches(context, metric):
            yield Hit(call.module, call.node, {"test": call.module.text(call.node)[:80]}, variant="schedule")


def _ends_by(call: Call) -> Iterator[ast.expr]:
    """Yield the conditions on an attribute of a called object that end the loop: ``if stop.early_stop: break``."""
    for node in ast.walk(call.loops[-1]) if call.loops else ():
        of_object = isinstance(node, ast.If) and isinstance(node.test, ast.Attribute)
        if of_object and ast.unparse(node.test.value) == ast.unparse(call.node.func):  # type: ignore[attr-defined]
            yield from [node.test] if any(isinstance(part, ast.Break) for part in ast.walk(node)) else ()  # type: ignore[attr-defined]


@check("DDP612")
def _stopped_by_an_object(context: Context) -> Iterator[Hit]:
    loops = {loop for meeting in comparison(context).meetings for loop in meeting.call.loops}
    for call in context.trace.calls:
        inside = call.reached and not call.method and not loops.isdisjoint(call.loops)
        for test in _ends_by(call) if inside else ():
            if any(_of_batches(context, value) for value in call.arguments[:1]):
                yield Hit(call.module, test, {"test": ast.unparse(test)}, variant="batches")


def _is_of_some_ranks(context: Context, guard: Guard) -> bool:
    """Return whether a condition certainly fails on some ranks, and no collective spreads its value before."""
    truths = {process.truth(guard.value) for process in PROCESSES}
    if False not in truths or len(truths) == 1:
        return False
    leaving = {departure.guard.holds for departure in context.trace.departures if departure.guard.test is guard.test}
    compared = {id(part) for part in derivation(guard.value) if isinstance(part, Operation)}
    spread = (
        id(part) in compared
        for call in context.trace.calls
        if met_by_name(call, sharded=False) is not None
        for argument in (*call.arguments, *call.keywords.values())
        for part in derivation(argument)
    )
    return len(leaving) == 1 and not any(spread)


def _leavings(context: Context, met: Comparison) -> Iterator[Departure]:
    """Return the conditions that end a loop in which ranks meet."""
    loops = {loop for meeting in met.meetings for loop in meeting.call.loops}
    return (leaving for leaving in context.trace.departures if leaving.loop in loops)


def _of_batches(context: Context, value: Value | None) -> bool:
    """Return whether a number comes from the part of the data of one rank."""
    divided = {
        loader
        for loader in loaders(context)
        if any("Sampler" in maker.name for maker in makers(loader.argument("sampler", 3)))
    }
    divided |= {
        call
        for call in context.trace.methods("prepare", "setup_dataloaders", "prepare_data_loader")
        if owner_kind(call.receiver) in ("accelerate", "fabric")
    }
    loops = {
        iteration.node
        for iteration in context.trace.iterations
        if any(isinstance(part, Result) and part.call in divided for part in derivation(iteration.over))
    }
    return of_own_batches(context, value, lambda call: call in divided or not loops.isdisjoint(call.loops))


@check("TRN738")
def _monitored_by_every_rank(context: Context) -> Iterator[Hit]:
    """Yield a checkpoint or an early end that depends on the loss of one rank's part of the data."""
    calls = [call for call in context.trace.calls if call.reached and call.name.startswith(_LIGHTNING)]
    several = any(call.called == "Trainer" and in_several_processes(call) for call in calls)
    monitored = {
        constant(call.argument("monitor", 0 if call.called == "EarlyStopping" else 1)): call
        for call in calls
        if call.called in ("ModelCheckpoint", "EarlyStopping")
    }
    visited: set[ast.AST] = set()
    for log in context.trace.methods("log") if several else ():
        name, together = constant(log.argument("name", 0)), constant(log.argument("sync_dist"))
        decides = monitored.get(name) if isinstance(name, str) else None
        if (
            decides is None
            or (together is not False and log.argument("sync_dist") is not None)
            or log.unpacks
            or log.node in visited
            or owner_kind(log.receiver) != "module"
        ):
            continue
        visited.add(log.node)
        parts = [part.call for part in derivation(log.argument("value", 1)) if isinstance(part, Result)]
        of_loss = any(part.name.startswith(("torch.nn.", "torch.mean")) for part in parts)
        if of_loss and not any(part.name.startswith("torchmetrics.") or part.called in _REDUCED for part in parts):
            yield Hit(log.module, log.node, {"metric": name, "call": decides.called})


_LIGHTNING = ("lightning.", "pytorch_lightning.")
_REDUCED = ("compute", "all_gather", "all_reduce", "reduce", "gather")


@check("DDP613")
def _written_before_it_is_read(context: Context) -> Iterator[Hit]:
    met = comparison(context)
    if context.libraries.smp_v1 or not parallel_wraps(context):
        return
    first, second = PROCESSES[:2]
    shared = [meeting.call.order for meeting in met.meetings if not meeting.one_sided]
    writes = [call for call in context.trace.calls if call.called in _WRITERS and call.reached]
    writes = [call for call in writes if call.called != "save" or call.name == "torch.save"]
    for save in writes:
        if not first.runs(save) or second.runs(save):
            continue
        path = save.argument(*_WRITERS[save.called])
        for load in context.trace.calls if path is not None else ():
            read = load.argument("f", 0)
            by_all = load.called in _READERS and load.reached and second.runs(load)
            if not by_all or load.order < save.order or path is None or read is None:
                continue
            meets = any(save.order < order < load.order for order in shared)
            if not meets and not load.loops and any(_is_in(a, b) for a in something(path) for b in something(read)):
                yield Hit(load.module, load.node, {"path": load.module.text(load.node.args[0])[:60]})
                break


_WRITERS = {
    "save": ("f", 1), "snapshot_download": ("local_dir", 9), "save_pretrained": ("save_directory", 0),
    "save_to_disk": ("dataset_path", 0),
}  # fmt: skip
_READERS = ("load", "from_pretrained", "load_from_disk")


def _is_in(folder: Value, path: Value) -> bool:
    """Return whether a path is certainly the written file, or one in the written folder."""
    texts = (constant(folder), constant(path))
    below = all(isinstance(text, str) for text in texts) and str(texts[1]).startswith(f"{texts[0]}/")
    return below or same(folder, path)
