"""SMP v1 with TensorFlow: the data pipeline and the outputs of the model."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.values import Constant, Instance, Result, Value, options
from smp_advisor.review.scripts.checks.step import returned_values, unused_values
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import constant, derivation, is_known, known_names, ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call

_LISTINGS = known_names("listings")
_SEEDS = ("tensorflow.random.set_seed", "tensorflow.keras.utils.set_random_seed", "numpy.random.seed", "random.seed")
_OTHER_RANKS = {"smptf.rank", "smptf.local_rank", "smptf.mp_rank", "smptf.pp_rank"}
_GATHERED = ("sorted", "natsort.natsorted", "len", "any", "set")


def is_dataset(value: Value | None, depth: int = 0) -> bool:
    """Return whether `value` is certainly a ``tf.data.Dataset``."""
    if value is None or depth > 20:
        return False
    alternatives = options(value)
    return bool(alternatives) and all(
        isinstance(option, Result)
        and (
            option.call.name.startswith("tensorflow.data.")
            or (option.call.receiver is not None and is_dataset(option.call.receiver, depth + 1))
        )
        for option in alternatives
    )


@check("SMP201", "smp_tensorflow")
def _whole_batches(context: Context) -> Iterator[Hit]:
    if context.settings.microbatches == 1:
        return
    for call in context.trace.methods("batch", "padded_batch"):
        if not is_dataset(call.receiver):
            continue
        drop_remainder = call.argument("drop_remainder", 1 if call.method == "batch" else 3)
        if (drop_remainder is None and not call.unpacks) or constant(drop_remainder) is False:
            yield Hit(call.module, call.node)


@check("SMP202", "smp_tensorflow")
def _order_by_rank(context: Context) -> Iterator[Hit]:
    for call in context.trace.methods("shuffle"):
        if not is_dataset(call.receiver) or call.unpacks:
            continue
        seed = call.argument("seed", 1)
        wrong = ranks(seed) - {"smptf.dp_rank"}
        unseeded = seed is None or (isinstance(seed, Constant) and seed.value is None)
        sharded = any(
            isinstance(part, Result)
            and part.call.method == "shard"
            and any(map(ranks, (*part.call.arguments, *part.call.keywords.values())))
            for part in derivation(call.receiver)
        )
        fixed = seed is not None and is_known(seed) and not ranks(seed) and not sharded
        if wrong or unseeded or fixed:
            variant = "unseeded" if unseeded else "shuffle"
            yield Hit(call.module, call.node, variant=variant)
    for call in context.trace.methods("shard"):
        if not is_dataset(call.receiver):
            continue
        index = call.argument("index", 1)
        wrong = ranks(index) - {"smptf.dp_rank"}
        if index is not None and wrong:
            rank = min(wrong).replace("smptf", "smp")
            yield Hit(call.module, call.node, {"rank": rank}, variant="shard")

    for call in context.trace.named(*_SEEDS):
        wrong = set().union(*(ranks(value) for value in call.arguments[:1])) & _OTHER_RANKS
        if call.reached and wrong:
            rank = min(wrong).replace("smptf", "smp")
            function = call.module.text(call.node.func)
            yield Hit(call.module, call.node, {"function": function, "rank": rank}, variant="seed")


@check("SMP203", "smp_tensorflow")
def _unused_outputs(context: Context) -> Iterator[Hit]:
    for call in context.trace.calls:
        model = call.receiver
        if call.method or not isinstance(model, Instance) or "smptf.DistributedModel" not in model.cls.ancestors():
            continue
        returned = returned_values(model, "call")
        if unused := unused_values(call, returned):
            yield Hit(call.module, call.node, {"returned": returned, "unused": unused})


@check("SMP204", "smp_tensorflow")
def _sorted_files(context: Context) -> Iterator[Hit]:
    for call in context.trace.named("tensorflow.data.Dataset.list_files"):
        shuffled = constant(call.argument("shuffle", 1)) is not False
        if shuffled and call.argument("seed", 2) is None and not call.unpacks:
            yield Hit(call.module, call.node, {"call": "list_files()"})
    # Calls whose results go into a data set.
    read = {
        part.call.node
        for call in context.trace.calls
        if call.name.startswith("tensorflow.data.")
        for argument in (*call.arguments, *call.keywords.values())
        for part in derivation(argument)
        if isinstance(part, Result)
    }
    by_path = [
        call
        for call in context.trace.methods("glob", "rglob", "iterdir")
        if isinstance(call.receiver, Result) and call.receiver.call.name.startswith("pathlib.")
    ]
    for call in (*context.trace.named(*_LISTINGS), *by_path):
        if not _in_order(call) and call.node in read:
            text = call.module.text(call.node)
            yield Hit(call.module, call.node, {"call": text})


def _in_order(call: Call) -> bool:
    """Return whether the listing is sorted immediately, or by a later ``.sort()``."""
    node = call.module.parent(call.node)
    while node is not None and not isinstance(node, ast.stmt):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _GATHERED:
            return True
        if isinstance(node, ast.Compare):
            return True
        node = call.module.parent(node)
    names = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
    return any(_sorts(part, names) for part in call.module.all(ast.Call))


def _sorts(node: ast.Call, names: list[str]) -> bool:
    """``names.sort()`` or ``sorted(names)``."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == "sort" and getattr(node.func.value, "id", "") in names
    return getattr(node.func, "id", "") == "sorted" and bool(node.args) and getattr(node.args[0], "id", "") in names
