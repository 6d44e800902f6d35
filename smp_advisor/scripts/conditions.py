"""Truth of a condition in the script: by the settings of the job and the defaults of the script's options."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.values import Argument, Choice, Constant, External, Member, Operation, Result, Value, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smp_advisor.reading.trace import Call, Guard
    from smp_advisor.scripts.settings import Settings

__all__ = ["Conditions", "arguments_of"]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Is": operator.eq,
    "IsNot": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
}
_SIZES = {
    "smp.tp_size": "tensor_parallel_degree",
    "smp.pp_size": "pipeline_parallel_degree",
    "smp.num_microbatches": "microbatches",
}
_STATES = ("smp.state.", "tsm.state.")
_UNSEEN = object()


@dataclass(slots=True)
class Conditions:
    """Assumptions for the truth of conditions."""

    settings: Settings
    defaults: bool = False
    """Whether an option without another value has its default."""
    granted: dict[str, bool] = field(default_factory=dict)
    """Conditions that training requires, by the text of their tests."""

    def off(self, call: Call) -> list[Guard]:
        """Conditions around `call` that certainly prevent it from running."""
        return [guard for guard in call.guards if self.truth_of(guard) is (not guard.holds)]

    def truth_of(self, guard: Guard) -> bool | None:
        """Whether the test of `guard` is true; None if unknown."""
        granted = self.granted.get(ast.dump(guard.test)) if self.granted else None
        return granted if granted is not None else self.truth(guard.value)

    def truth(self, value: Value) -> bool | None:
        """Whether `value` is true; None if unknown."""
        if isinstance(value, Choice):
            return _agreed(self.truth(option) for option in value.alternatives)
        if isinstance(value, Operation):
            if value.operator == "Not":
                inner = self.truth(value.operands[0])
                return None if inner is None else not inner
            if value.operator in ("And", "Or"):
                return _combined([self.truth(operand) for operand in value.operands], both=value.operator == "And")
            compare = _COMPARISONS.get(value.operator)
            if compare is None or len(value.operands) != 2:
                return None
            return self._compared(compare, value.operands[0], value.operands[1])
        constant = self.known(value)
        return None if constant is _UNSEEN else bool(constant)

    def _compared(self, compare: Callable[[Any, Any], bool], left: Value, right: Value) -> bool | None:
        first, second = self.known(left), self.known(right)
        if first is _UNSEEN or second is _UNSEEN:
            return None
        try:
            return bool(compare(first, second))
        except TypeError:
            return None

    def known(self, value: Value) -> Any:
        """The number or text in `value`; `_UNSEEN` if unknown."""
        if isinstance(value, Constant):
            return value.value
        if isinstance(value, Argument):
            return self._option(value)
        if isinstance(value, Result):
            name = value.call.name
            if name in _SIZES:
                return self._setting(_SIZES[name])
            if name in ("int", "bool", "float") and len(value.call.arguments) == 1:
                return self.known(value.call.arguments[0])
        if isinstance(value, External) and value.path.startswith(_STATES):
            return self._setting(value.path.rpartition(".")[2])
        if isinstance(value, Member) and isinstance(value.owner, External) and value.owner.path.startswith(_STATES):
            return self._setting(value.name)
        return _UNSEEN

    def _setting(self, name: str) -> Any:
        value = getattr(self.settings, name, None)
        return _UNSEEN if value is None else value

    def _option(self, option: Argument) -> Any:
        """Value of the option: that of the job, of the plan's parameter with this name, or the default."""
        if option.name in self.settings.hyperparameters:
            return _read(self.settings.hyperparameters[option.name])
        planned = self._setting(option.name)
        if planned is not _UNSEEN or not self.defaults:
            return planned
        return option.default.value if isinstance(option.default, Constant) else _UNSEEN


def _read(value: Any) -> Any:
    """A hyperparameter as the script's parser reads it, because jobs pass text."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(value.lower(), value)


def arguments_of(value: Value, depth: int = 0) -> set[str]:
    """Names of the command-line options in a condition."""
    if isinstance(value, Argument):
        return {value.name}
    parts: Iterable[Value] = ()
    if isinstance(value, Operation) and depth < 6:
        parts = value.operands
    elif isinstance(value, Choice) and depth < 6:
        parts = options(value)
    return {name for part in parts for name in arguments_of(part, depth + 1)}


def _agreed(truths: Iterable[bool | None]) -> bool | None:
    """The common truth of all; None if they differ or one is unknown."""
    distinct = set(truths)
    return distinct.pop() if len(distinct) == 1 else None


def _combined(truths: list[bool | None], *, both: bool) -> bool | None:
    """Three-valued ``and`` (`both`) and ``or``."""
    if (not both) in truths:
        return not both
    return None if None in truths else both
