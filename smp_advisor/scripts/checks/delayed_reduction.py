"""Calls that delay the reduction of gradients while batches accumulate, and conditions for them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.reading.values import Argument, Constant, Member, Result, options
from smp_advisor.scripts.conditions import Conditions
from smp_advisor.scripts.queries import mentions

if TYPE_CHECKING:
    from smp_advisor.reading.trace import Call
    from smp_advisor.reading.values import Value
    from smp_advisor.scripts.context import Context

__all__ = ["Delay", "around_backward", "batches", "calls_of", "elsewhere", "option_of_batches"]

_COUNT = re.compile(r"accum|grad_acc|acc_steps")
"""Options for the number of batches per step: ``gradient_accumulation_steps``, ``accum_iter``."""
_OURS = ("fsdp", "fullysharded", "fully_shard")
_OTHERS = ("ddp", "distributeddataparallel", "deepspeed")


@dataclass(frozen=True, slots=True)
class Delay:
    """A call that delays the reduction of gradients that FSDP shards."""

    call: Call
    values: dict[str, object]
    """Fields of the message: `call`, or `framework` with its `batches` or the `option` that sets them."""
    element_bytes: int | None = None
    """Bytes per element of a delayed gradient, if known."""


def option_of_batches(context: Context) -> tuple[bool, str]:
    """Whether the job's options make a step of one batch, and the option that does so by default."""
    planned, default = Conditions(context.settings), Conditions(context.settings, defaults=True)
    for name, declared in context.trace.options.items():
        if not _COUNT.search(name):
            continue
        option = Argument(name, declared.argument("default") or Constant(None))
        if _is_one(planned.known(option)):
            return True, ""
        if _is_one(default.known(option)):
            return False, name
    return False, ""


def _is_one(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number <= 1


def batches(context: Context, count: Value | None) -> dict[str, object]:
    """The `batches` of a step, or the `option` that sets them; empty if it is one batch or unknown."""
    for option in options(count):
        number = Conditions(context.settings, defaults=True).known(option)
        if isinstance(number, int) and number > 1:
            return {"batches": f"{number} batches"}
        if isinstance(option, Argument) and _is_one(number) and not _is_one(Conditions(context.settings).known(option)):
            return {"option": option.name}
    return {}


def calls_of(context: Context, name: str) -> list[Call]:
    """Calls of a method by its name, also through a variable: ``sync = model.no_sync if more else nullcontext``."""
    through_variables = [
        call
        for call in context.trace.calls
        if not call.method
        and call.receiver is not None
        and any(
            isinstance(candidate, Member) and candidate.name == name and candidate.owner is call.receiver
            for candidate in call.candidates
        )
    ]
    return [*context.trace.methods(name), *through_variables]


def around_backward(context: Context, call: Call) -> bool:
    """Whether gradients are computed in its block. They are not if all visible backward passes are outside."""
    inside = [
        inner
        for inner in context.trace.calls
        if any(
            isinstance(option, Result) and option.call is call for block in inner.contexts for option in options(block)
        )
    ]
    trains = any(inner.reached for inner in context.trace.methods("backward"))
    return not inside or not trains or any(inner.method == "backward" for inner in inside)


def elsewhere(call: Call) -> bool:
    """Whether a condition limits the call to models with another wrapper: ``if isinstance(model, DDP)``."""
    return any(_excludes(guard.test, holds=guard.holds) for guard in call.guards)


def _excludes(test: ast.expr, *, holds: bool) -> bool:
    """Whether `test` excludes FSDP if its value is `holds`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _excludes(test.operand, holds=not holds)
    if isinstance(test, ast.BoolOp):
        parts = [_excludes(part, holds=holds) for part in test.values]
        all_hold_or_none = isinstance(test.op, ast.And) is holds
        return any(parts) if all_hold_or_none else all(parts)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.NotEq, ast.IsNot, ast.NotIn)):
        holds = not holds
    if mentions(test, *_OURS):
        return not holds
    return holds and mentions(test, *_OTHERS)
