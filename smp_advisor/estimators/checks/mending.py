"""The fewest changes to a dictionary of parameters that end a violation and start no other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.validation import violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.libraries.rule import Condition, Rule
    from smp_advisor.libraries.schema import Parameter
    from smp_advisor.libraries.validation import Violation

__all__ = ["mended"]

_SINGLE = ("unknown", "version", "type", "range", "choice")

Edit = tuple[str, Any, str]
"""Parameter, its new value (None: taken out), its new name (empty: as it was)."""


def mended(given: Mapping[str, Any], violation: Violation, *, version: str, library: str) -> list[Edit]:
    """Changes that end `violation`; none where every way needs a person's decision."""
    best: list[Edit] = []
    fewest: int | None = None
    for edits in _candidates(given, violation, version, library):
        left = list(violations(_applied(given, edits), version=version, library=library))
        if any(one.rule == violation.rule and one.keys == violation.keys for one in left):
            continue
        if violation.rule in _SINGLE:
            return edits  # what it then excludes shows next, and is another question
        if fewest is None or len(left) < fewest:
            best, fewest = edits, len(left)
    return best


def _applied(given: Mapping[str, Any], edits: list[Edit]) -> dict[str, Any]:
    changed = dict(given)
    for key, value, renamed in edits:
        if renamed:
            changed = {renamed if name == key else name: held for name, held in changed.items()}
        elif value is None:
            changed.pop(key, None)
        else:
            changed[key] = value
    return changed


def _candidates(given: Mapping[str, Any], violation: Violation, version: str, library: str) -> Iterator[list[Edit]]:
    stated = schema(library)
    key = violation.keys[0]
    if violation.rule in ("unknown", "version"):
        near = stated.nearest(key, version)
        if violation.rule == "version":
            near = next((one.key for one in stated.parameters if one.alias_of == key and one.exists_in(version)), None)
        if near is not None and near not in given:
            yield [(key, None, near)]
        yield [(key, None, "")]
        return
    parameter = stated.parameter(key)
    if violation.rule in ("type", "range", "choice") and parameter is not None:
        for value in _values(parameter, given.get(key)):
            yield [(key, value, "")]
        yield [(key, None, "")]
        return
    rule = next((one for one in stated.rules if one.id == violation.rule), None)
    if rule is not None and not rule.script_setting:
        # Rules are broken by what is right by itself; of the rest nothing can be compared.
        wrong = {
            key
            for one in violations(given, version=version, library=library)
            if one.rule in _SINGLE
            for key in one.keys
        }
        sound = {key: value for key, value in given.items() if key not in wrong}
        yield from _for_rule(rule, sound, stated.completed(sound))


def _values(parameter: Parameter, value: Any) -> Iterator[Any]:
    """Values of the right type, nearest first."""
    if parameter.type == "bool":
        text = str(value).strip().lower()
        if text in ("1", "true", "yes", "on", "1.0"):
            yield True
        elif text in ("0", "false", "no", "off", "0.0"):
            yield False
        return
    if parameter.type in ("int", "float"):
        number = _number(value)
        if number is None or math.isnan(number):
            return
        low = -math.inf if parameter.minimum is None else parameter.minimum
        high = math.inf if parameter.maximum is None else parameter.maximum
        number = min(max(number, low), high)
        if math.isfinite(number):
            yield round(number) if parameter.type == "int" else float(number)
        return
    known = [one for one in parameter.choices if one.lower() == str(value).strip().lower()]
    yield from known


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _for_rule(rule: Rule, given: Mapping[str, Any], effective: Mapping[str, Any]) -> Iterator[list[Edit]]:
    """What the rule needs; else without what calls for it."""
    needs: list[Edit] = []
    for condition in rule.needs:
        if condition.holds(given, effective):
            continue
        value = _satisfying(condition, effective)
        if value is None:
            break
        needs.append((condition.key, value, ""))
    else:
        if needs:
            yield needs
    for condition in rule.when:
        if condition.key == "bf16":
            yield [("bf16", None, ""), ("fp16", True, "")]
        if condition.key in given:
            yield [(condition.key, None, "")]


def _satisfying(condition: Condition, effective: Mapping[str, Any]) -> Any:
    """A value that makes a condition hold."""
    right = condition.value if condition.other is None else effective.get(condition.other)
    if condition.operator in ("==", "<=", ">="):
        return right
    if condition.operator == "<" and isinstance(right, int):
        return 0 if right > 0 else None
    if condition.operator == "!=" and right is None:
        return 0
    if condition.operator == "!=" and isinstance(right, bool):
        return not right
    return None
