"""Checkpoints: which ranks save them, and which state can be saved."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import (
    Argument,
    Collection,
    Constant,
    Item,
    Member,
    Operation,
    Result,
    Value,
)
from smp_advisor.review.scripts.checks.parallel import parallel_wraps, wrapped_by
from smp_advisor.review.scripts.checks.sharding import in_place
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import (
    constant,
    derivation,
    guarded_by,
    is_wrapped_model,
    is_wrapped_optimizer,
    mentions,
    rank_conditions,
    ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.trace import Call


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
