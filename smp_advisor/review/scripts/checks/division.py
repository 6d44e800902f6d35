"""Checks of the second process and the second instance: devices, groups, and the division of data."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import Constant, Instance, Item, Result, options
from smp_advisor.review.scripts.checks.data import iterations_over, loaders
from smp_advisor.review.scripts.checks.parallel import REPLICATING, by_framework, joins, parallel_wraps
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import (
    PROCESSES,
    framework_runs,
    in_several_processes,
    of_counted_processes,
    owner_kind,
)
from smp_advisor.review.scripts.queries import (
    KNOWN_PACKAGES,
    argument_node,
    constant,
    derivation,
    known_names,
    makers,
    mentions,
    origins,
    ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value


_STARTERS = ("spawn", "Process")
"""Calls that start the processes of one instance in the script."""


@check("DDP617")
def _one_group_of_all_instances(context: Context) -> Iterator[Hit]:
    for call in context.trace.named("torch.distributed.init_process_group"):
        rank = call.argument("rank", 4)
        size = call.argument("world_size", 3)
        spawned = any(entry.called in _STARTERS for entry in context.trace.calls)
        local = rank is not None and ranks(rank) == {"os.environ.LOCAL_RANK"}
        counted = any(maker.name == "torch.cuda.device_count" for maker in makers(size))
        if call.reached and not spawned and (local or (counted and rank is not None)):
            yield Hit(call.module, call.node, variant="count")
        several = Conditions(context.settings, defaults=True).known(size) if size is not None else None
        fixed = type(constant(rank)) is int and isinstance(several, int) and several > 1 and not call.guards
        if call.reached and not spawned and fixed and not call.functions:
            yield Hit(call.module, call.node, {"rank": constant(rank)}, variant="fixed")
        for module in context.trace.modules if call.reached and not spawned else ():
            for node in module.all(ast.Assign):
                address = ast.unparse(node) in _ADDRESSES
                variant = "address" if address else "port" if _PORT.match(ast.unparse(node)) else ""
                text = module.source.text
                started = _STARTED.search(text) if variant and not _SETS.search(text) else None
                if started and (address <= (started[1] == "WORLD_SIZE")) and _always_runs(context, module, node):
                    yield Hit(module, node, variant=variant)


def _always_runs(context: Context, module: Module, node: ast.AST) -> bool:
    """Return whether no condition or handler is around a statement, nor around a call of its function."""
    for place in module.around(node):
        if isinstance(place, ast.FunctionDef):
            calls = [call for call in context.trace.calls if call.function is not None and call.function.node is place]
            return any(call.reached and call.sure for call in calls)
        if isinstance(place, (ast.Try, ast.If)) and "__name__" not in ast.unparse(getattr(place, "test", place)):
            return False
    return True


_PORT = re.compile(r"os\.environ\['MASTER_PORT'\] = (?!.*(?:MASTER_PORT|cast)).*(?:rand|free|open_|avail|unused).*\(")
_STARTED = re.compile(r"[\"'](WORLD_SIZE|SLURM_NTASKS|SLURM_PROCID)[\"']")
"""Variables of launchers, which start every process with the same address and port."""
_SETS = re.compile(r"os\.environ\[[\"']WORLD_SIZE[\"']\]\s*=(?!=)|\bseed\(.*JOB")
"""A process without a launcher, or one whose random numbers are those of its job."""
_ADDRESSES = {f"os.environ['MASTER_ADDR'] = '{host}'" for host in ("localhost", "127.0.0.1")}


@check("DDP633")
def _gpu_of_every_process(context: Context) -> Iterator[Hit]:
    """``DDP(model.to("cuda:0"), device_ids=[0])``, which each process of an instance does alike."""
    text = context.text
    if "CUDA_VISIBLE_DEVICES" in text:
        return
    started = [call for call in context.trace.named("torch.distributed.init_process_group") if call.reached]
    for call in context.trace.named("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
        several = any(not exclusive(start, call) for start in started) and not of_counted_processes(call)
        if call.reached and several and not call.gives("device_ids", 1) and not parallel_wraps(context):
            yield Hit(call.module, call.node, variant="all")
    for call in parallel_wraps(context):
        if of_counted_processes(call):
            continue
        number = next(iter(getattr(call.argument("device_ids", 1), "items", ())), None)
        moved, model = "", call.argument("module", 0)
        while isinstance(model, Result) and model.call.receiver is not None and not moved:
            to = model.call.arguments[0] if model.call.method in ("to", "cuda") and model.call.arguments else None
            to = to.call.arguments[0] if isinstance(to, Result) and to.call.name == "torch.device" else to
            moved = f"cuda:{constant(to)}" if isinstance(constant(to), int) else str(constant(to) or "")
            model = model.call.receiver
        listed = argument_node(call, "device_ids", 1)
        numbered = isinstance(listed, ast.List) and all(isinstance(item, ast.Constant) for item in listed.elts)
        if (numbered and number is not None) or (_ONE_GPU.fullmatch(moved) and moved in text):
            yield Hit(call.module, call.node, {"device": moved or f"cuda:{constant(number)}"}, variant="one")

    setters = context.trace.named(*_DEVICES) if started and parallel_wraps(context) else []
    numbers = [str(constant(call.argument("device", 0))).removeprefix("cuda:") for call in setters]
    for call, number in zip(setters, numbers, strict=True) if all(map(str.isdigit, numbers)) else ():
        # A condition that is not known may hold in a single process only.
        certain = all(process.truth(guard.value) is guard.holds for guard in call.guards for process in PROCESSES)
        if call.reached and certain and not of_counted_processes(call):
            yield Hit(call.module, call.node, {"device": f"cuda:{number}"}, variant="current")


_ONE_GPU = re.compile(r"cuda:\d+")


_DEVICES = ("torch.cuda.set_device",)


@check("DDP618")
def _device_of_the_instance(context: Context) -> Iterator[Hit]:
    spawned = any(entry.called in _STARTERS for entry in context.trace.calls)
    for call in context.trace.named(*_DEVICES, "torch.nn.parallel.DistributedDataParallel"):
        value = call.argument("device", 0) if call.name in _DEVICES else call.argument("device_ids", 1)
        if value is None or not call.reached:
            continue
        direct = [part for option in options(value) for part in getattr(option, "items", [option])]
        if direct and all(_is_world_rank(part, _VARIABLES) for part in direct):
            yield Hit(call.module, call.node, {"call": call.called})
        elif direct and not spawned and all(_is_world_rank(part, _WORLD) for part in direct):
            yield Hit(call.module, call.node, {"call": call.called}, severity="warning")


_VARIABLES = frozenset(["os.environ.RANK"])
_WORLD = _VARIABLES | {"torch.distributed.get_rank"}


def _is_world_rank(value: Value, names: frozenset[str]) -> bool:
    """Return whether a device is the rank itself, which counts over all instances: not its remainder."""
    variables = set[str]()
    for option in options(value):
        if not isinstance(option, (Result, Item)):
            return False
        variables |= ranks(option)
    return bool(variables) and variables <= names


@check("DDP619")
def _divided_by_ranks_and_workers(context: Context) -> Iterator[Hit]:
    trainers = [call for call in context.trace.calls if call.reached and owner_kind(Result(call)) == "lightning"]
    if not parallel_wraps(context) and not any(map(in_several_processes, trainers)):
        return
    trained = {loop for back in context.trace.methods("backward") for loop in back.loops}
    fed = [part for fit in context.trace.methods("fit") for part in derivation(fit.argument("train_dataloaders", 1))]
    for call in loaders(context):
        home = call.functions[-1].name if call.functions else ""
        for origin in origins(call.argument("dataset", 0)):
            runs = call.reached or (framework_runs(call) and home == "train_dataloader")
            trains = home == "train_dataloader" or any(isinstance(part, Result) and part.call is call for part in fed)
            trains |= any(iteration.node in trained for iteration in iterations_over(context, call))
            if not isinstance(origin, Instance) or not runs:
                continue
            stream = _is_stream(origin)
            nodes: list[ast.AST] = [cls.node for cls in origin.cls.lineage]
            workers = any(mentions(node, "get_worker_info") for node in nodes)
            calls = [part.func for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call)]
            helpers = {name.id for call_of in calls for name in ast.walk(call_of) if isinstance(name, ast.Name)}
            foreign = {path.rpartition(".")[2] for _, _, path in context.trace.imports if not _is_known(path)} & helpers
            nodes += [function.node for function in context.trace.functions if function.name in helpers]
            ranked = any(
                mentions(node, "rank", "world_size", "num_replicas", "shard", "replica", "split_dataset")
                for node in nodes
            ) or any(ranks(value) for value in (*origin.call.arguments, *origin.call.keywords.values()))
            sources = [part for value in origin.call.arguments for part in derivation(value)]
            ranked |= any(isinstance(part, Result) and part.call.called in _DIVIDING for part in sources)
            text = "".join(map(ast.unparse, nodes))
            outside = {part.call.name.partition(".")[0] for part in sources if isinstance(part, Result)}
            alike = re.search(rf"(?i)%|islice|::|{_CHOOSES.pattern}", text) is None and not foreign
            alike = alike and outside <= KNOWN_PACKAGES | {"", "open", "str"}
            if stream and ((trains and (workers or alike)) or (workers and not fed)) and not ranked:
                variant = "" if workers else "undivided"
                yield Hit(call.module, call.node, {"dataset": origin.cls.node.name}, variant=variant)


def _is_known(path: str) -> bool:
    return path.partition(".")[0] in KNOWN_PACKAGES


_CHOOSES = re.compile(r"rand|sampl|choice|shuf|seed|node|distrib|process|consum", re.IGNORECASE)
"""Words of streams whose rows may differ between the ranks."""
_DIVIDING = ("split_dataset_by_node", "shard")


@check("TRN746")
def _rows_of_each_worker(context: Context) -> Iterator[Hit]:
    """Streams of the script that every worker of a loader yields from the first row to the last."""
    arguments = {call: constant(call.argument("dataloader_num_workers")) for call in trainer_arguments(context)}
    fed = [(call, constant(call.argument("num_workers", 5)), call.argument("dataset", 0)) for call in loaders(context)]
    fed += [
        (call, arguments.get(maker), call.argument("train_dataset"))
        for call in context.trace.calls
        for maker in (makers(call.argument("args", 1)) if call.name.endswith("Trainer") else ())
    ]
    by_worker = "get_worker_info" in context.text
    for call, workers, dataset in fed:
        several = call.reached and isinstance(workers, int) and workers > 1 and not call.gives("worker_init_fn")
        for origin in origins(dataset) if several else ():
            lineage = [*origin.cls.lineage] if isinstance(origin, Instance) and _is_stream(origin) else []
            text = "".join(cls.module.text(cls.node) for cls in lineage)
            complete = all(path.startswith("torch.") for cls in lineage for path in cls.ancestors())
            divides = re.search(rf"(?i)worker|{_CHOOSES.pattern}", text)
            if lineage and complete and not divides and not by_worker and _READS.search(text):
                yield Hit(call.module, call.node, {"dataset": lineage[0].node.name, "workers": workers})


_READS = re.compile(r"(?:\bin|from) (?:enumerate\()?open\(|def __iter__.*\n(?:.*\n)?? +with open\(")


def _is_stream(origin: Instance) -> bool:
    return any(path.endswith("IterableDataset") for path in origin.cls.ancestors())


@check("DDP620")
def _as_many_batches_on_every_rank(context: Context) -> Iterator[Hit]:
    if by_framework(context) or not parallel_wraps(context):
        return
    text = context.text
    bounded = joins(context) or any(
        word in text for word in ("max_steps", "islice", "num_steps", "total_steps", "cycle(")
    )
    own_part = [selection for selection in context.trace.selections if ranks(selection.by) and makers(selection.out_of)]
    for call in loaders(context) if not bounded else ():
        sliced = next((part for part in map(_slice_of, derivation(call.argument("dataset", 0))) if part), None)
        at = [selection for selection in own_part if selection.functions[-1:] == call.functions[-1:]]
        if sliced and at and call.reached and _ends_with_data(context, call):
            node: ast.AST = at[0].node
            while not isinstance(node, (ast.Subscript, ast.stmt)):
                node = at[0].module.parent(node) or call.node
            yield Hit(at[0].module, at[0].node, {"part": ast.unparse(node)[:60]}, variant="slice")
        for part in derivation(call.argument("dataset", 0)):
            if not isinstance(part, Result) or not part.call.name.endswith("split_dataset_by_node"):
                continue
            sources = [
                inner.call for inner in derivation(part.call.argument("dataset", 0)) if isinstance(inner, Result)
            ]
            streams = any(constant(source.argument("streaming")) is True for source in sources)
            if call.reached and streams and _ends_with_data(context, call):
                workers = constant(call.argument("num_workers", 5)) or 1
                counts = [_files(source) for source in sources]
                uneven = any(count and isinstance(workers, int) and count % (workers * 2) for count in counts)
                yield Hit(call.module, call.node, severity="warning" if uneven else None)
                break


def _slice_of(value: Value) -> bool:
    """Return whether a value is a slice of another one: ``files[rank::size]``."""
    return isinstance(value, Item) and not isinstance(value.key, Constant)


def _files(call: Call) -> int:
    """Return the number of files that a stream reads; 0 if it is not known."""
    listed = next(iter(options(call.argument("data_files"))), None)
    items = getattr(listed, "items", ())
    single_files = [item for item in items if "*" not in str(constant(item))]
    return len(single_files) if len(single_files) == len(items) else 0


def _ends_with_data(context: Context, loader: Call) -> bool:
    """Return whether a training loop ends when the data of the rank end."""
    trained = [back for back in context.trace.methods("backward") if back.reached and back.loops]
    leaves = {departure.loop for departure in context.trace.departures}
    return bool(trained) and not leaves & {loop for back in trained for loop in back.loops} and loader.reached


_OF_WRAPPER = re.compile(known_names("of_wrapper")[0])
"""Methods that a DistributedDataParallel has."""


@check("TRN726")
def _methods_of_the_wrapper(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in parallel_wraps(context) if wrap.name in REPLICATING]
    for call in context.trace.calls if wraps else ():
        own = call.method and not _OF_WRAPPER.fullmatch(call.method)
        peers = [peer for peer in context.trace.methods(call.method) if peer.node is call.node] if own else []
        owners = [owner for peer in peers for owner in origins(peer.receiver)]
        wrapped = owners and all(isinstance(owner, Result) and owner.call in wraps for owner in owners)
        checks = any(re.search("hasattr|module|isinstance", ast.unparse(guard.test)) for guard in call.guards)
        if call.reached and wrapped and not checks and isinstance(call.node.func, ast.Attribute):
            yield Hit(call.module, call.node, {"call": call.module.text(call.node.func)}, variant="method")
