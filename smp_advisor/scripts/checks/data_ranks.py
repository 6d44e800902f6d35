"""Ranks that select the data of a process and seed it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import Edit, replace, wrap
from smp_advisor.reading.values import Operation, Result, Value, options
from smp_advisor.scripts.checks.data import loaders
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import argument_node, constant, is_known, origins, ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.trace import Call, Selection

_SAMPLER = "torch.utils.data.DistributedSampler"
_SEEDS = frozenset(
    [
        "random.seed",
        "numpy.random.seed",
        "torch.manual_seed",
        "torch.random.manual_seed",
        "transformers.set_seed",
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
        "accelerate.utils.set_seed",
        "lightning.seed_everything",
        "pytorch_lightning.seed_everything",
        "numpy.random.default_rng",
        "numpy.random.RandomState",
        "random.Random",
    ]
)
_WEIGHT_SEEDS = frozenset(
    [
        "torch.manual_seed",
        "transformers.set_seed",
        "accelerate.utils.set_seed",
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
    ]
)
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
        for variant, value in _seeds(call) if seeds else _shards(call):
            yield from _judge(context, call, value, variant, sharding=not seeds)
    yield from _slices(context)


def _seeds(call: Call) -> list[tuple[str, Value]]:
    seeds = (*call.arguments[:1], *(call.keywords[key] for key in ("seed", "a", "x") if key in call.keywords))
    return [("seed", value) for value in seeds]


def _shards(call: Call) -> list[tuple[str, Value]]:
    """Arguments that select a part of the data."""
    if call.method == "shard" and call.receiver is not None:
        index = call.argument("index", 1)
        return [("shard", index)] if index is not None else []
    if call.method == "select" and call.receiver is not None:
        return [("shard", value) for value in call.arguments]
    if call.name in ("range", "itertools.islice") and len(call.arguments) > 2 and not _prepares(call):
        return [("shard", call.arguments[-3])] if ranks(call.arguments[-1]) or _counts(call.arguments[-1]) else []
    if call.name.endswith("split_dataset_by_node"):
        rank = call.argument("rank", 1)
        return [("shard", rank)] if rank is not None else []
    return [(name, call.keywords[name]) for name in sorted(_KEYWORDS & call.keywords.keys())]


def _counts(value: Value) -> bool:
    """Whether `value` is a number of processes."""
    return any(isinstance(origin, Result) and origin.call.name in _SIZES for origin in origins(value))


def _sampler(context: Context, call: Call) -> Iterator[Hit]:
    rank = call.argument("rank", 2)
    if rank is None:
        # The default is the rank of torch.distributed, which counts the pipeline stages of one replica as readers.
        if (not call.unpacks and context.settings.pipelined) or (
            not call.unpacks and context.settings.prescaled_batch and context.settings.tensor_parallel
        ):
            yield Hit(call.module, call.node, {"right": _right(context)}, variant="default rank")
        return
    yield from _judge(context, call, rank, "sampler", sharding=True)
    if _wrong(context, rank, sharding=True) is None:
        yield from _replicas(context, call, rank)


def _replicas(context: Context, call: Call, rank: Value) -> Iterator[Hit]:
    """The number of readers must be that of the ranks that read."""
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
            renamed = isinstance(place, ast.Call) and place is not call.node and len(own) == 1
            edits = [_renamed(call.module, place, right[4:])] if renamed and isinstance(place, ast.Call) else []
            yield Hit(call.module, place, values, edits, variant="replicas")


def _judge(context: Context, call: Call, value: Value, variant: str, *, sharding: bool) -> Iterator[Hit]:
    rank = _wrong(context, value, sharding=sharding)
    if rank is None:
        return
    node = _rank_node(call, rank) or call.node
    right = _right(context)
    edits: list[Edit] = []
    if node is not call.node and isinstance(node, ast.Call) and rank.startswith("smp.") and right == "smp.dp_rank()":
        edits = [_renamed(call.module, node, "dp_rank")]
    values: dict[str, object] = {"rank": _spoken(rank), "right": right}
    if variant in _KEYWORDS:
        variant, values = "argument", {"argument": variant, **values}
    yield Hit(call.module, node, values, edits, variant=variant)


def _renamed(module: Module, node: ast.Call, name: str) -> Edit:
    if isinstance(node.func, ast.Attribute):
        return replace(module, node.func, f"{module.text(node.func.value)}.{name}")
    return replace(module, node.func, name)


def _right(context: Context) -> str:
    prescaled = context.settings.prescaled_batch and context.settings.tensor_parallel_degree != 1
    return "smp.rdp_rank()" if prescaled else "smp.dp_rank()"


def _wrong(context: Context, value: Value, *, sharding: bool) -> str | None:
    """The rank function that must not be used here; None if the rank is correct or not visible."""
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
    """The call of the rank function, if it is among the arguments."""
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
    """Whether it divides work that is done once, by the name of its function, and not the model's data."""
    names = [getattr(function.node, "name", "") for function in divided.functions[-1:]]
    words = [word.lower() for name in names for word in _WORD.findall(name)]
    return words[:1] != ["train"] and any(map(_PREPARING.fullmatch, words))


def _spoken(rank: str) -> str:
    """The rank as the script writes it."""
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
    starts = [call for call in context.trace.named("smp.init") if call.reached]
    edits: list[Edit] = []
    if starts and starts[0].order < final.order and final.node.args and final.module.scope.find("smp") is not None:
        simple = isinstance(final.node.args[0], (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript))
        first, second = wrap(
            final.module, final.node.args[0], "" if simple else "(", f"{'' if simple else ')'} + smp.dp_rank()"
        )
        edits = [first, second]
    yield Hit(final.module, final.node, {"call": final.module.text(final.node)}, edits)


@check("SMP136", "smp_torch")
def _one_order_per_pipeline(context: Context) -> Iterator[Hit]:
    seeded = any(call.name in _SEEDS or call.method == "manual_seed" for call in context.trace.calls)
    if not context.settings.pipelined or seeded:
        return
    for call in loaders(context):
        sampled = any(call.gives(name, position) for name, position in (("sampler", 3), ("batch_sampler", 4)))
        shuffles = any(constant(option) is True for option in options(call.argument("shuffle", 2)))
        if shuffles and not sampled and not call.gives("generator"):
            yield Hit(call.module, call.node)
