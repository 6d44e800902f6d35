"""Checkpoints: which ranks save them, and which state can be saved."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import Edit, replace
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import constant, guarded_by, is_wrapped_model, is_wrapped_optimizer, rank_conditions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_ONE_PROCESS = frozenset({"smp.rank", "smp.local_rank", "smp.mp_rank", "smp.pp_rank"})
_ONE_PART = frozenset({"smp.tp_rank"})
_SAVES = ("smp.save", "smp.save_checkpoint")


@check("SMP126", "smp_torch")
def _saving_ranks(context: Context) -> Iterator[Hit]:
    settings = context.settings
    if not (settings.tensor_parallel or settings.pipelined):
        return
    reported: set[ast.AST] = set()
    for call in [*context.trace.named(*_SAVES), *_states(context)]:
        conditions = rank_conditions(call)
        if settings.tensor_parallel and "smp.dp_rank" in conditions and not conditions & {"smp.rank", "smp.rdp_rank"}:
            guard = _guard_node(call, "dp_rank")
            place = guard or call.node
            if place not in reported:
                reported.add(place)
                yield Hit(call.module, place, _values(call, "smp.dp_rank()"), _reduced(call, guard))
            continue
        wrong = sorted(conditions & (_ONE_PROCESS if _gathers(call) else _ONE_PROCESS | _ONE_PART))
        if wrong and not _is_full(call):
            yield Hit(call.module, call.node, _values(call, f"{wrong[0]}()"))


def _is_full(call: Call) -> bool:
    """Whether the state was gathered before, so that one process writes it."""
    return constant(call.argument("partial", 2)) is False or (call.name == "smp.save" and not _partial_states(call))


def _partial_states(call: Call) -> bool:
    """Whether ``smp.save`` writes only this rank's part: ``partial=True``, or a local state."""
    partial = call.argument("partial", 2)
    return constant(partial) is True or "local_state_dict" in call.module.text(call.node)


def _states(context: Context) -> list[Call]:
    return [
        call
        for call in context.trace.methods("state_dict", "local_state_dict")
        if call.receiver is not None and (is_wrapped_model(call.receiver) or is_wrapped_optimizer(call.receiver))
    ]


def _gathers(call: Call) -> bool:
    """Whether all ranks of a replica must take part."""
    return call.method == "state_dict"


def _values(call: Call, rank: str) -> dict[str, object]:
    return {"call": call.module.text(call.node.func), "rank": rank}


def _guard_node(call: Call, name: str) -> ast.Call | None:
    for guard in call.guards:
        for node in ast.walk(guard.test):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                return node
    return None


def _reduced(call: Call, guard: ast.Call | None) -> list[Edit]:
    if guard is None or not isinstance(guard.func, ast.Attribute):
        return []
    return [replace(call.module, guard.func, f"{call.module.text(guard.func.value)}.rdp_rank")]


@check("SMP127", "smp_torch")
def _optimizer_state(context: Context) -> Iterator[Hit]:
    settings = context.settings
    if not (settings.tensor_parallel or settings.shard_optimizer_state):
        return
    technique = "tensor parallelism" if settings.tensor_parallel else "shard_optimizer_state"
    for call in context.trace.methods("state_dict"):
        if call.receiver is None or not is_wrapped_optimizer(call.receiver) or _for_other_jobs(call):
            continue
        edits = []
        if isinstance(call.node.func, ast.Attribute) and not call.arguments and not call.keywords:
            text = f"{call.module.text(call.node.func.value)}.local_state_dict"
            edits = [replace(call.module, call.node.func, text)]
        yield Hit(call.module, call.node, {"technique": technique}, edits, variant="state dict")
    for call in context.trace.named("smp.save_checkpoint"):
        optimizer = call.argument("optimizer", 4)
        if constant(call.argument("partial", 2)) is False and optimizer is not None and is_wrapped_optimizer(optimizer):
            yield Hit(call.module, call.node, {"technique": technique}, variant="checkpoint")


def _for_other_jobs(call: Call) -> bool:
    """Whether the call is in the branch without sharding and tensor parallelism."""
    return bool(guarded_by(call, "shard", "tp_size", "tensor_parallel"))
