"""Batches: sizes, partial batches, and the ranks that select and seed the data of a process."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.core.files import table
from smp_advisor.review.reading.data import reason
from smp_advisor.review.reading.trace import Iteration, exclusive
from smp_advisor.review.reading.values import (
    Argument,
    Constant,
    External,
    Instance,
    Item,
    Operation,
    Result,
    Value,
    is_none,
    options,
)
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import (
    argument_node,
    constant,
    derivation,
    is_known,
    known_names,
    makers,
    mentions,
    origins,
    ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call, Selection


_TORCHVISION = "torchvision.datasets."
_FAKE_SIZE = 1000
"""Default size of torchvision's FakeData."""


def samples_of(value: Value | None) -> int | None:
    """Return the number of samples of a data set of torchvision; None if unknown."""
    if not isinstance(value, Result) or not value.call.name.startswith(_TORCHVISION):
        return None
    call = value.call
    name = call.name.rpartition(".")[2]
    if name == "FakeData":
        argument = call.argument("size", 0)
        size = _FAKE_SIZE if argument is None else constant(argument)
        return size if isinstance(size, int) else None
    sizes = table("smp_advisor.review.scripts", "data/dataset_sizes.toml")
    if name in sizes["train_or_test"]:
        argument = call.argument("train", 1)
        train = True if argument is None else constant(argument)
        return int(sizes["train_or_test"][name][0 if train else 1]) if isinstance(train, bool) else None
    if name in sizes["by_split"]:
        split = call.argument("split", 1)
        return sizes["by_split"][name].get("train" if split is None else constant(split))  # type: ignore[no-any-return]
    return None


LOADERS = ("torch.utils.data.DataLoader", "torchdata.stateful_dataloader.StatefulDataLoader")
_SAMPLER = "torch.utils.data.DistributedSampler"
_SHARDED = ("SplitDataset", "split_dataset_by_node", "Subset", "random_split", "IterableDataset")


def loaders(context: Context) -> list[Call]:
    """Return the calls that create a data loader, including subclasses in the script."""
    return context.trace.named(*LOADERS)


def batch_size(call: Call) -> Value:
    """Return the batch size of the loader."""
    return call.argument("batch_size", 1) or Constant(1)


@check("SMP109", "smp_torch")
def _whole_batches(context: Context) -> Iterator[Hit]:
    # A loop may skip batches whose size microbatches does not divide.
    skips = any(
        any(isinstance(inner, (ast.Continue, ast.Break)) for inner in node.body)
        and any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in ast.walk(node.test))
        and mentions(node.test, "microbatch", "num_mb")
        for module in context.trace.modules
        for node in module.all(ast.If)
    )
    if not context.splits or skips:
        return
    for call in loaders(context):
        if not isinstance(call.argument("batch_sampler", 4), (Constant, type(None))):
            continue
        drop_last = call.argument("drop_last", 8)
        if drop_last is None and call.unpacks:
            context.leave_open(
                call.module, call.node, "drop_last of this DataLoader may be among the unpacked arguments (SMP109)."
            )
            continue
        if isinstance(call.argument("batch_size", 1), Constant) and constant(batch_size(call)) is None:
            continue
        if not _outside_steps(context, call) and _drops(context, call, drop_last) is False:
            values = _known_last_batch(context, call)
            if values:
                yield Hit(call.module, call.node, values, variant="divisible")
            else:
                yield Hit(call.module, call.node, variant="indivisible")
    for call in context.trace.named("torch.utils.data.BatchSampler"):
        drop_last = call.argument("drop_last", 2)
        if constant(drop_last) is False and not isinstance(drop_last, Argument):
            yield Hit(call.module, call.node, variant="indivisible")


def _known_last_batch(context: Context, call: Call) -> dict[str, object]:
    """Return the size of the last batch, if it is known and a multiple of the microbatches; else empty."""
    size, sampler = constant(batch_size(call)), call.argument("sampler", 3)
    if not isinstance(size, int) or size < 1 or (sampler is not None and not is_none(sampler)):
        return {}
    counts = map(samples_of, origins(call.argument("dataset", 0)))
    last = {count % size for count in counts if count is not None}
    microbatches = context.settings.microbatches
    if not last or any(remainder % (microbatches or 2) for remainder in last):
        return {}
    divisor = f"microbatches ({microbatches})" if microbatches else "some numbers of microbatches"
    return {"samples": " or ".join(map(str, sorted(last))), "divisor": divisor}


def _drops(context: Context, call: Call, drop_last: Value | None) -> bool | None:
    """Return whether the last, partial batch is dropped; None if that is not visible."""
    if drop_last is None:
        return False
    constants = [constant(option) if isinstance(option, Constant) else None for option in options(drop_last)]
    if all(value is not None and not value for value in constants):
        return False
    if any(value is None for value in constants):
        context.leave_open(call.module, call.node, "drop_last of this DataLoader is not a literal (SMP109).")
        return None
    return bool(all(constants))


def _outside_steps(context: Context, loader: Call) -> bool:
    """Return whether all visible loops over the loader call no step."""
    fed = [
        iteration
        for iteration in context.trace.iterations
        if any(comes_from(option, loader) for option in options(iteration.over))
    ]
    handed_on = (ast.Yield, ast.YieldFrom)  # values go to the caller of the generator
    if not fed or any(isinstance(part, handed_on) for iteration in fed for part in ast.walk(iteration.node)):
        return False
    return not any(
        call.function is not None
        and call.function.step is not None
        and any(first <= call.order <= last for first, last in (iteration.steps_inside for iteration in fed))
        for call in context.trace.calls
    )


def comes_from(value: Value, loader: Call, depth: int = 0) -> bool:
    """Return whether `value` is the loader, or is made from it: ``enumerate(loader)``."""
    if not isinstance(value, Result) or depth > 4:
        return False
    if value.call is loader:
        return True
    return any(
        comes_from(option, loader, depth + 1) for argument in value.call.arguments for option in options(argument)
    )


def iterations_over(context: Context, loader: Call) -> list[Iteration]:
    """Loops over the loader, or that draw from it: ``while True: batch = next(batches)``."""
    draws = [call for call in context.trace.named("next") if call.loops and call.arguments]
    iterations = [Iteration(call.loops[-1], call.module, call.arguments[0], (call.order,) * 2) for call in draws]
    iterations += context.trace.iterations
    return [loop for loop in iterations if any(comes_from(option, loader) for option in options(loop.over))]


@check("SMP110")
def _divisible(context: Context) -> Iterator[Hit]:
    microbatches = context.settings.microbatches
    if microbatches is None or microbatches < 2:
        return
    calls: list[tuple[Call, Value]] = []
    if context.libraries.smp_torch:
        calls += [(call, batch_size(call)) for call in loaders(context) if not call.gives("batch_sampler", 4)]
    if context.libraries.smp_tensorflow:
        calls += [(call, call.arguments[0]) for call in context.trace.methods("batch") if call.arguments]
    for call, size in calls:
        if not isinstance(call.argument("batch_size", 1), Constant) and call.unpacks:
            continue
        for alternative in options(size):
            option = alternative
            if isinstance(option, Argument) and option.name in context.settings.hyperparameters:
                option = Constant(Conditions(context.settings).known(option))
            _list_unknown_size(context, call, option, microbatches)
            value = constant(option)
            is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if is_size and value % microbatches and not _outside_steps(context, call):
                yield Hit(call.module, call.node, {"size": value, "microbatches": microbatches})


def _list_unknown_size(context: Context, call: Call, size: Value, microbatches: int) -> None:
    """List a batch size that is not known, or an option whose default is no multiple of the microbatches."""
    if not isinstance(size, (Argument, Constant)):
        context.leave_open(call.module, call.node, f"The batch size is not known: {reason(size)} (SMP110).")
    default = constant(size.default) if isinstance(size, Argument) else None
    if isinstance(size, Argument) and isinstance(default, int) and default % microbatches:
        context.leave_open(
            call.module,
            call.node,
            f"The batch size is the option --{size.name}, with the default {default}."
            f" Pass a multiple of microbatches ({microbatches}) (SMP110).",
        )


@check("SMP125", "smp_torch", needs="tensor_parallel")
def _distributed_sampler(context: Context) -> Iterator[Hit]:
    for call in loaders(context):
        samplers = [call.argument("sampler", 3), call.argument("batch_sampler", 4)]
        if call.unpacks or any(value is not None and constant(value) is not None for value in samplers):
            continue
        sampled = [value for value in samplers if value is not None and not isinstance(value, Constant)]
        if sampled or _outside_steps(context, call) or is_sharded(call.argument("dataset", 0)):
            continue
        if any(exclusive(call, loader) and loader.argument("sampler", 3) is not None for loader in loaders(context)):
            continue  # the ranks that read get a sampler, the others a placeholder
        yield Hit(call.module, call.node)


_WHOLE = frozenset(known_names("whole_data"))
"""Methods of a data set that return all of its rows, or rows that do not depend on the rank."""


def whole_of(value: Value) -> Value:
    """Return the data set that a value comes from by methods that do not divide it: ``load_dataset(...).map(f)``."""
    for _ in range(12):
        if isinstance(value, Item) and isinstance(value.key, Constant) and isinstance(value.key.value, str):
            value = value.owner
        elif isinstance(value, Result) and value.call.method in _WHOLE and value.call.receiver is not None:
            values = (*value.call.arguments, *value.call.keywords.values())
            if any(ranks(part) for argument in values for part in derivation(argument)):
                return value
            value = options(value.call.receiver)[0]
        else:
            break
    return value


def is_sharded(dataset: Value | None) -> bool:
    """Return whether the dataset is, or may be, divided before the loader."""
    for source in origins(dataset):
        origin = whole_of(source)
        if isinstance(origin, Result):
            call = origin.call
            divided = call.name.endswith(_SHARDED) or call.method in ("shard", "select", "split")
            by_rank = any(ranks(value) for value in (*call.arguments, *call.keywords.values()))
            if divided or by_rank:
                return True
        elif isinstance(origin, Instance):
            arguments = (*origin.call.arguments, *origin.call.keywords.values())
            if any(path.endswith("IterableDataset") for path in origin.cls.ancestors()) or any(map(ranks, arguments)):
                return True
        elif not isinstance(origin, External):
            return True  # not visible
    return False


_SEEDS = frozenset(known_names("seeds"))
_WEIGHT_SEEDS = frozenset(known_names("weight_seeds"))
_WORLD = frozenset({"smp.rank", "torch.distributed.get_rank", "horovod.torch.rank", "os.environ.RANK"})
_NEVER = frozenset({"smp.local_rank", "smp.mp_rank", "smp.pp_rank", "os.environ.LOCAL_RANK"})
_GOOD = frozenset({"smp.dp_rank", "smp.rdp_rank"})
_WORLD_SIZES = frozenset({"smp.size", "torch.distributed.get_world_size"})
_SIZES = _WORLD_SIZES | {f"smp.{group}_size" for group in ("dp", "rdp", "mp", "pp", "tp", "local")}
_PREPARING = re.compile(
    r"(?:preprocess|prepare|download|(?:pre)?tokenize|convert|cache|count|save|write|log|export)(?:e?[sd]|g?ing)?"
)
"""Words in the names of functions whose work is done once, such as writing files: "log", not "dialog" or "logits"."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_KEYWORDS = frozenset(["dp_rank", "data_parallel_rank", "shard_index", "shard_id", "shard_rank", "data_rank"])


@check("SMP111", "smp_torch")
def _data_by_rank(context: Context) -> Iterator[Hit]:
    for call in context.trace.calls:
        if call.name == _SAMPLER:
            yield from _sampler(context, call)
            continue
        seeds = call.name in _SEEDS or call.method == "manual_seed"
        seeding = (*call.arguments[:1], *(call.keywords[key] for key in ("seed", "a", "x") if key in call.keywords))
        for variant, value in [("seed", value) for value in seeding] if seeds else _shards(call):
            yield from _judge(context, call, value, variant, sharding=not seeds)
    yield from _slices(context)


def _shards(call: Call) -> list[tuple[str, Value]]:
    """Return the arguments that select a part of the data."""
    if call.method == "shard" and call.receiver is not None:
        index = call.argument("index", 1)
        return [("shard", index)] if index is not None else []
    if call.method == "select" and call.receiver is not None:
        return [("shard", value) for value in call.arguments]
    if call.name in ("range", "itertools.islice") and len(call.arguments) > 2 and not _prepares(call):
        sizes = {maker.name for maker in makers(call.arguments[-1])} & _SIZES
        return [("shard", call.arguments[-3])] if sizes or ranks(call.arguments[-1]) else []
    if call.name.endswith("split_dataset_by_node"):
        rank = call.argument("rank", 1)
        return [("shard", rank)] if rank is not None else []
    return [(name, call.keywords[name]) for name in sorted(_KEYWORDS & call.keywords.keys())]


def _sampler(context: Context, call: Call) -> Iterator[Hit]:
    rank = call.argument("rank", 2)
    if rank is None:
        # The default is the rank of torch.distributed, which counts the pipeline stages of one replica as readers.
        settings = context.settings
        if not call.unpacks and (settings.pipelined or (settings.prescaled_batch and settings.tensor_parallel)):
            yield Hit(call.module, call.node, {"right": _right(context)}, variant="default rank")
        return
    yield from _judge(context, call, rank, "sampler", sharding=True)
    if _wrong(context, rank, sharding=True) is None:
        yield from _replicas(context, call, rank)


def _replicas(context: Context, call: Call, rank: Value) -> Iterator[Hit]:
    """Yield the number of readers must be that of the ranks that read."""
    count = call.argument("num_replicas", 1)
    for origin in origins(count):
        size = origin.call.name if isinstance(origin, Result) else ""
        counted = ranks(rank)
        alone = context.settings.pipeline_parallel_degree == 1 and size in _WORLD_SIZES and "smp.dp_rank" in counted
        own = {name.replace("_rank", "_size").replace(".rank", ".size") for name in counted}
        if size in _SIZES and counted and counted <= _GOOD and size not in own and not alone:
            place = argument_node(call, "num_replicas") or call.node
            right = min(own)
            values: dict[str, object] = {"rank": f"{size}()", "right": f"{right}()"}
            yield Hit(call.module, place, values, variant="replicas")


def _judge(context: Context, call: Call, value: Value, variant: str, *, sharding: bool) -> Iterator[Hit]:
    rank = _wrong(context, value, sharding=sharding)
    if rank is None:
        return
    node = _rank_node(call, rank) or call.node
    right = _right(context)
    values: dict[str, object] = {"rank": _spoken(rank), "right": right}
    if variant in _KEYWORDS:
        variant, values = "argument", {"argument": variant, **values}
    yield Hit(call.module, node, values, variant=variant)


def _right(context: Context) -> str:
    prescaled = context.settings.prescaled_batch and context.settings.tensor_parallel_degree != 1
    return "smp.rdp_rank()" if prescaled else "smp.dp_rank()"


def _wrong(context: Context, value: Value, *, sharding: bool) -> str | None:
    """Return the rank function that must not be used here; None if the rank is correct or not visible."""
    settings = context.settings
    names = ranks(value)
    never = _NEVER | ({"smp.tp_rank"} if sharding else set())
    for name in sorted(names & never):
        return name
    # Without pipeline stages, the global ranks are the data-parallel ranks.
    alone = settings.pipeline_parallel_degree == 1
    for name in sorted(names & _WORLD):
        if not alone or (sharding and settings.prescaled_batch and settings.tensor_parallel):
            return name
    if not sharding or not settings.tensor_parallel or {"smp.dp_rank", "smp.rdp_rank"} <= names:
        return None
    if "smp.dp_rank" in names and settings.prescaled_batch:
        return "smp.dp_rank"
    if "smp.rdp_rank" in names and settings.prescaled_batch is False:
        return "smp.rdp_rank"
    return None


def _rank_node(call: Call, rank: str) -> ast.expr | None:
    """Return the call of the rank function, if it is among the arguments."""
    name = rank.rpartition(".")[2]
    nodes = [
        node
        for argument in (*call.node.args, *(keyword.value for keyword in call.node.keywords))
        for node in ast.walk(argument)
        if isinstance(node, ast.Call)
        and ((isinstance(node.func, ast.Attribute) and node.func.attr == name) or getattr(node.func, "id", "") == name)
    ]
    return nodes[0] if len(nodes) == 1 else None


def _slices(context: Context) -> Iterator[Hit]:
    """``files[smp.rank()::smp.size()]``, and ``if number % smp.size() == smp.rank()``."""
    for selection in context.trace.selections:
        compared = isinstance(selection.out_of, Operation) and selection.out_of.operator == "Mod"
        if compared and ranks(selection.out_of):
            continue
        rank = _wrong(context, selection.by, sharding=True)
        if rank is not None and not _prepares(selection):
            # No fix: the size next to it must be of the same ranks.
            values: dict[str, object] = {"rank": _spoken(rank), "right": _right(context)}
            yield Hit(selection.module, selection.node, values, variant="shard")


def _prepares(divided: Selection | Call) -> bool:
    """Return whether it divides work that is done once, by the name of its function, and not the model's data."""
    names = [getattr(function.node, "name", "") for function in divided.functions[-1:]]
    words = [word.lower() for name in names for word in _WORD.findall(name)]
    return words[:1] != ["train"] and any(map(_PREPARING.fullmatch, words))


def _spoken(rank: str) -> str:
    """Return the rank as the script writes it."""
    variable = rank.removeprefix("os.environ.")
    return f'os.environ["{variable}"]' if variable != rank else f"{rank}()"


@check("SMP124", "smp_torch", needs="tensor_parallel")
def _weights_by_rank(context: Context) -> Iterator[Hit]:
    wrappings = context.wrappings
    if not wrappings:
        return
    last = wrappings[-1]
    seeds = [
        call
        for call in context.trace.calls
        if call.reached and call.name in _WEIGHT_SEEDS and call.order < last.order and call.arguments
    ]
    by_torch = [call for call in seeds if not call.name.startswith("torch.cuda.")] or seeds
    if not by_torch:
        return
    final = by_torch[-1]
    seed = final.arguments[0]
    if ranks(seed) or not is_known(seed) or any(ranks(call.arguments[0]) for call in by_torch if call.guards):
        return
    yield Hit(final.module, final.node, {"call": final.module.text(final.node)})
