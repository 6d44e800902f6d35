"""Fields of a plan from a library's dictionary and the script's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smp_advisor.errors import PlanError
from smp_advisor.libraries.schema import Parameter, Schema, schema
from smp_advisor.libraries.validation import violations

__all__ = ["fields_from"]

_LONGEST_NUMBER = 18
"""Digits of a whole number in a setting."""
_OFF = ("none", "false", "0", "no", "off")
_ON = ("true", "1", "yes", "on", "each")


def fields_from(
    parameters: Mapping[str, Any],
    hyperparameters: Mapping[str, Any],
    *,
    version: str,
    library: str,
    plan_fields: frozenset[str],
) -> dict[str, Any]:
    """Fields of the plan of a dictionary of parameters and script settings.

    Raises `PlanError` for settings that the library refuses, and for parameters that plans do not have.
    """
    if not isinstance(parameters, Mapping):
        raise PlanError(f"The library's parameters must be a dictionary, not {parameters!r:.80}.")
    for violation in violations(parameters, version=version, library=library):
        raise PlanError(violation.text)
    facts = schema(library)
    values: dict[str, Any] = {}
    for key, value in parameters.items():
        if value is None:
            continue
        name = _current_name(facts, key)
        if name in plan_fields:
            # Two names of one parameter have equal values, or only one of them is on.
            values[name] = value if name == key else values.get(name, False) or value
        elif value != facts.defaults(version)[key]:
            raise PlanError(
                f"{key}={value!r} is not part of a plan: leave it out here, or pass it with"
                f" smp.init({{{key!r}: {value!r}}}) in the script."
            )
    precision = _precision(hyperparameters)
    for setting in facts.settings:
        used = next((name for name in (setting.key, *setting.aliases) if name in hyperparameters), None)
        if used is not None:
            values[setting.key] = _setting(setting, hyperparameters[used])
    if precision is not None:  # SMP v1's plans have parameters for it instead
        values["precision"] = precision
    return values


def _precision(hyperparameters: Mapping[str, Any]) -> Any:
    if not isinstance(hyperparameters, Mapping):
        raise PlanError(f"The script's settings must be a dictionary, not {hyperparameters!r:.80}.")
    """Precision of the script: by its name, or by the flags of AWS's scripts."""
    if "precision" in hyperparameters:
        return hyperparameters["precision"]
    return next((name for name in ("bf16", "fp16") if str(hyperparameters.get(name)).lower() in _ON), None)


def _current_name(facts: Schema, key: str) -> str:
    parameter = facts.parameter(key)
    return parameter.alias_of if parameter is not None and parameter.alias_of else key


def _setting(setting: Parameter, value: Any) -> Any:
    """A script's setting as a plan stores it. Flags may be 1 and 0 or texts, and "none" is none."""
    text = str(value).lower()
    if setting.key == "activation_checkpointing":
        # AWS's scripts have a flag here, which checkpoints each layer.
        return False if text in _OFF else "each" if text in _ON else value
    if setting.type == "bool" and text in (*_OFF, *_ON):
        return text in _ON
    if setting.type == "int" and isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_NUMBER:
        return int(value)
    return value
