"""The fewest changes to a dictionary of parameters that remove a violation without adding another."""

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

__all__ = ["smallest_edits"]

_SINGLE = ("unknown", "version", "type", "range", "choice")

Edit = tuple[str, Any, str]
"""Parameter, its new value (None: removed), its new name (empty: unchanged)."""


def smallest_edits(parameters: Mapping[str, Any], violation: Violation, *, version: str, library: str) -> list[Edit]:
    """Changes that remove `violation`; none if every one needs a decision of the user."""
    best: list[Edit] = []
    fewest: int | None = None
    for edits in _candidates(parameters, violation, version, library):
        after = _applied(parameters, edits)
        if violation.rule in _SINGLE:  # depends on no other parameter
            after = {key: after[key] for key in (*violation.keys, edits[0][2]) if key in after}
        left = list(violations(after, version=version, library=library))
        if any(remaining.rule == violation.rule and remaining.keys == violation.keys for remaining in left):
            continue
        if violation.rule in _SINGLE:
            return edits  # violations that it then causes are reported next
        if fewest is None or len(left) < fewest:
            best, fewest = edits, len(left)
    return best


def _applied(parameters: Mapping[str, Any], edits: list[Edit]) -> dict[str, Any]:
    changed = dict(parameters)
    for key, value, renamed in edits:
        if renamed:
            changed = {renamed if name == key else name: entry for name, entry in changed.items()}
        elif value is None:
            changed.pop(key, None)
        else:
            changed[key] = value
    return changed


def _candidates(
    parameters: Mapping[str, Any], violation: Violation, version: str, library: str
) -> Iterator[list[Edit]]:
    library_schema = schema(library)
    key = violation.keys[0]
    if violation.rule in ("unknown", "version"):
        near = library_schema.nearest(key, version)
        if violation.rule == "version":
            near = next(
                (
                    parameter.key
                    for parameter in library_schema.parameters
                    if parameter.alias_of == key and parameter.exists_in(version)
                ),
                None,
            )
        if near is not None and near not in parameters:
            yield [(key, None, near)]
        yield [(key, None, "")]
        return
    parameter = library_schema.parameter(key)
    if violation.rule in ("type", "range", "choice") and parameter is not None:
        for value in _values(parameter, parameters.get(key)):
            yield [(key, value, "")]
        yield [(key, None, "")]
        return
    rule = next((rule for rule in library_schema.rules if rule.id == violation.rule), None)
    if rule is not None and not rule.script_setting:
        # Rules apply to parameters that are valid on their own. The others cannot be compared.
        wrong = {
            key
            for fault in violations(parameters, version=version, library=library)
            if fault.rule in _SINGLE
            for key in fault.keys
        }
        sound = {key: value for key, value in parameters.items() if key not in wrong}
        yield from _for_rule(rule, sound, library_schema.completed(sound))


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
    choices = [choice for choice in parameter.choices if choice.lower() == str(value).strip().lower()]
    yield from choices


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _for_rule(rule: Rule, parameters: Mapping[str, Any], effective: Mapping[str, Any]) -> Iterator[list[Edit]]:
    """Values that the rule requires; else removal of the parameter that triggers it."""
    needs: list[Edit] = []
    for condition in rule.needs:
        if condition.holds(parameters, effective):
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
        if condition.key in parameters:
            yield [(condition.key, None, "")]


def _satisfying(condition: Condition, effective: Mapping[str, Any]) -> Any:
    """A value that makes a condition true."""
    right = condition.value if condition.reference is None else effective.get(condition.reference)
    if condition.operator in ("==", "<=", ">="):
        return right
    if condition.operator == "<" and isinstance(right, int):
        return 0 if right > 0 else None
    if condition.operator == "!=" and right is None:
        return 0
    if condition.operator == "!=" and isinstance(right, bool):
        return not right
    return None
