"""Batches: partial batches, and sizes that microbatches do not divide."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.data import reason
from smp_advisor.reading.edits import add_keyword
from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import Argument, Constant, External, Instance, Result, Value, options
from smp_advisor.scripts.checks.sizes import samples
from smp_advisor.scripts.conditions import Conditions
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import constant, mentions, origins, ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

LOADERS = ("torch.utils.data.DataLoader", "torchdata.stateful_dataloader.StatefulDataLoader")
_SAMPLER = "torch.utils.data.DistributedSampler"
_SHARDED = ("SplitDataset", "split_dataset_by_node", "Subset", "random_split", "IterableDataset")


def loaders(context: Context) -> list[Call]:
    """Calls that create a data loader, including subclasses in the script."""
    return context.trace.named(*LOADERS)


def batch_size(call: Call) -> Value:
    """The batch size of the loader."""
    return call.argument("batch_size", 1) or Constant(1)


@check("SMP109", "smp_torch")
def _whole_batches(context: Context) -> Iterator[Hit]:
    if not context.splits or _skips_by_hand(context):
        return
    for call in loaders(context):
        batches = call.argument("batch_sampler", 4)
        if batches is not None and constant(batches) is None and not isinstance(batches, Constant):
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
            edits = [add_keyword(call.module, call.node, "drop_last", "True")]
            values = _known_last_batch(context, call)
            if values:
                yield Hit(call.module, call.node, values, edits, variant="divisible")
            else:
                yield Hit(call.module, call.node, {}, edits, variant="indivisible")
    for call in context.trace.named("torch.utils.data.BatchSampler"):
        drop_last = call.argument("drop_last", 2)
        if constant(drop_last) is False and not isinstance(drop_last, Argument):
            edits = [add_keyword(call.module, call.node, "drop_last", "True")] if "drop_last" in call.keywords else []
            yield Hit(call.module, call.node, {}, edits, variant="indivisible")


def _known_last_batch(context: Context, call: Call) -> dict[str, object]:
    """Size of the last batch, if it is known and a multiple of the microbatches; else empty."""
    size, sampler = constant(batch_size(call)), call.argument("sampler", 3)
    if not isinstance(size, int) or size < 1 or _is_given(sampler):
        return {}
    last = {count % size for count in samples(call.argument("dataset", 0)) if count is not None}
    microbatches = context.settings.microbatches
    if not last or any(remainder % (microbatches or 2) for remainder in last):
        return {}
    divisor = f"microbatches ({microbatches})" if microbatches else "some numbers of microbatches"
    return {"samples": " or ".join(map(str, sorted(last))), "divisor": divisor}


def _is_given(value: Value | None) -> bool:
    """Whether an argument is passed and is not None."""
    return value is not None and not (isinstance(value, Constant) and value.value is None)


def _drops(context: Context, call: Call, drop_last: Value | None) -> bool | None:
    """Whether the last, partial batch is dropped; None if that is not visible."""
    if drop_last is None:
        return False
    constants = [constant(option) if isinstance(option, Constant) else None for option in options(drop_last)]
    if all(value is not None and not value for value in constants):
        return False
    if any(value is None for value in constants):
        context.leave_open(call.module, call.node, "drop_last of this DataLoader is not a literal (SMP109).")
        return None
    return bool(all(constants))


def _skips_by_hand(context: Context) -> bool:
    """Whether a loop skips batches whose size microbatches does not divide."""
    return any(
        any(isinstance(inner, (ast.Continue, ast.Break)) for inner in node.body)
        and any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in ast.walk(node.test))
        and mentions(node.test, "microbatch", "num_mb")
        for module in context.trace.modules
        for node in module.all(ast.If)
    )


def _outside_steps(context: Context, loader: Call) -> bool:
    """Whether all visible loops over the loader call no step."""
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
    """Whether `value` is the loader, or is made from it: ``enumerate(loader)``."""
    if not isinstance(value, Result) or depth > 4:
        return False
    if value.call.node is loader.node:
        return True
    return any(
        comes_from(option, loader, depth + 1) for argument in value.call.arguments for option in options(argument)
    )


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


def is_sharded(dataset: Value | None) -> bool:
    """Whether the dataset is, or may be, divided before the loader."""
    for origin in origins(dataset):
        if isinstance(origin, Result):
            call = origin.call
            divided = call.name.endswith(_SHARDED) or call.method in ("shard", "select", "split", "map", "filter")
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
