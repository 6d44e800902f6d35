"""Conditions and rules of a schema: settings that require or exclude each other."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Condition", "Rule"]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "multiple_of": lambda value, divisor: value % divisor == 0,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A setting compared with a value, or with another setting: ``tensor_parallel_degree > 1``."""

    key: str
    operator: str
    value: Any
    reference: str | None = None
    """Name of the setting with which it is compared, instead of `value`."""

    @classmethod
    def parse(cls, key: str, text: str) -> Condition:
        """Read ``"> 1"``, ``"== true"`` or ``"<= $microbatches"``."""
        sign, _, right = text.partition(" ")
        if sign not in _OPERATORS:
            raise ValueError(f"unknown operator {sign!r} in the condition {text!r} on {key}")
        if right.startswith("$"):
            return cls(key, sign, None, right[1:])
        return cls(key, sign, json.loads(right))

    @property
    def keys(self) -> tuple[str, ...]:
        """Settings that it reads."""
        return (self.key,) if self.reference is None else (self.key, self.reference)

    def holds(self, settings: Mapping[str, Any], effective: Mapping[str, Any]) -> bool:
        """Whether it holds.

        Parameters
        ----------
        settings
            Settings by the user, for comparisons with null.
        effective
            The same with the library's defaults, for all other comparisons.
        """
        right = self.value if self.reference is None else effective[self.reference]
        left = (settings if right is None else effective).get(self.key)
        return _OPERATORS[self.operator](left, right)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """If every condition of `when` holds, every one of `needs` must hold."""

    id: str
    when: tuple[Condition, ...]
    needs: tuple[Condition, ...]
    what: str
    fix: str
    source: str
    since: str | None = None
    until: str | None = None
    script_setting: bool = False
    """Whether it is about a setting of the training script, which an estimator alone does not show."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Settings that it reads, each once."""
        return tuple(dict.fromkeys(key for condition in (*self.when, *self.needs) for key in condition.keys))

    def applies_to(self, version: str) -> bool:
        """Whether the library version has this rule."""
        after = self.since is None or release(self.since) <= release(version)
        return after and (self.until is None or release(version) <= release(self.until))

    def broken_by(self, settings: Mapping[str, Any], effective: Mapping[str, Any]) -> bool:
        """Whether the settings break it."""
        if not all(condition.holds(settings, effective) for condition in self.when):
            return False
        return not all(condition.holds(settings, effective) for condition in self.needs)
