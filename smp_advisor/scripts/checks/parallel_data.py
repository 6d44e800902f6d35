"""Data under DDP and FSDP: each process reads its own part, in another order in each epoch."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.values import Constant, Operation, Result, Value, options
from smp_advisor.scripts.checks.data import comes_from, is_sharded, loaders
from smp_advisor.scripts.checks.replicas import parallel_wraps
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import constant, origins, ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call, Iteration

_SAMPLER = "torch.utils.data.DistributedSampler"


@check("DDP603")
def _each_its_own_part(context: Context) -> Iterator[Hit]:
    if not parallel_wraps(context):
        return
    for call in loaders(context):
        samplers = (call.argument("sampler", 3), call.argument("batch_sampler", 4))
        if call.unpacks or any(value is not None and not _is_none(value) for value in samplers):
            continue
        dataset = call.argument("dataset", 0)
        if not call.reached or not _trains_on(context, call) or dataset is None or is_sharded(dataset):
            continue
        shuffles = any(bool(constant(option)) for option in options(call.argument("shuffle", 2)))
        yield Hit(call.module, call.node, variant="shuffled" if shuffles else "same")


def _is_none(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None


def _fed(context: Context, loader: Call) -> list[Iteration]:
    """Loops over the loader."""
    return [
        iteration
        for iteration in context.trace.iterations
        if any(comes_from(option, loader) for option in options(iteration.over))
    ]


def _trains_on(context: Context, loader: Call) -> bool:
    backwards = [call for call in context.trace.methods("backward") if call.reached]
    return any(iteration.node in call.loops for iteration in _fed(context, loader) for call in backwards)


@check("DDP604")
def _another_order_each_epoch(context: Context) -> Iterator[Hit]:
    if not parallel_wraps(context) or any(
        node.attr == "set_epoch" for module in context.trace.modules for node in module.all(ast.Attribute)
    ):
        return
    for loader in loaders(context):
        for origin in origins(loader.argument("sampler", 3)):
            if not isinstance(origin, Result) or origin.call.name != _SAMPLER or not origin.call.reached:
                continue
            shuffle = origin.call.argument("shuffle", 3)
            if (shuffle is None or constant(shuffle) is True) and _in_epochs(context, loader):
                yield Hit(origin.call.module, origin.call.node)


def _in_epochs(context: Context, loader: Call) -> bool:
    """Whether a training loop over the loader is in another loop."""
    nodes = {iteration.node for iteration in _fed(context, loader)}
    return any(
        call.reached and any(loop in nodes for loop in call.loops[1:]) for call in context.trace.methods("backward")
    )


@check("SMP314", "smp_v2", needs="tensor_parallel")
def _one_part_per_group(context: Context) -> Iterator[Hit]:
    for call in context.trace.named(_SAMPLER):
        rank = call.argument("rank", 2)
        # A quotient of the world rank may be the data parallel rank.
        direct = [origin for origin in origins(rank) if not isinstance(origin, Operation)]
        world = rank is None or any(
            ranks(origin) & {"torch.distributed.get_rank", "os.environ.RANK"} for origin in direct
        )
        if call.reached and not call.unpacks and world:
            yield Hit(call.module, call.node)
