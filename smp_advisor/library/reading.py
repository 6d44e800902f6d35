"""Reading the library's dictionary and the script's settings as the fields of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smp_advisor.errors import PlanError
from smp_advisor.library.schema import Schema, schema
from smp_advisor.library.validation import violations

__all__ = ["fields_from"]


def fields_from(
    parameters: Mapping[str, Any],
    hyperparameters: Mapping[str, Any],
    *,
    version: str,
    library: str,
    plan_fields: frozenset[str],
) -> dict[str, Any]:
    """Fields of the plan that a dictionary of parameters and script settings states.

    Raises `PlanError` for whatever the library refuses, and for parameters that a plan does not hold.
    """
    if not isinstance(parameters, Mapping):
        raise PlanError(f"The library's parameters must be a dictionary, not {parameters!r}.")
    for violation in violations(parameters, version=version, library=library):
        raise PlanError(violation.text)
    stated = schema(library)
    values: dict[str, Any] = {"ddp": False}
    for key, value in parameters.items():
        if value is None:
            continue
        name = _current_name(stated, key)
        if name in plan_fields:
            # Two names of one parameter have equal values here, or only one of them is on.
            values[name] = value if name == key else values.get(name, False) or value
        elif value != stated.defaults(version)[key]:
            raise PlanError(
                f"{key}={value!r} is outside what a plan describes: leave it out here, or pass it with"
                f" smp.init({{{key!r}: {value!r}}}) in the script."
            )
    values.update(_script_settings(hyperparameters, values))
    return values


def _current_name(stated: Schema, key: str) -> str:
    parameter = stated.parameter(key)
    return parameter.alias_of if parameter is not None and parameter.alias_of else key


def _script_settings(hyperparameters: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    offloads = values.get("offload_activations", False)
    checkpointing = hyperparameters.get("activation_checkpointing", "each" if offloads else "none")
    stated = hyperparameters.get("precision")
    flagged = "fp16" if values.get("fp16") else "bf16" if values.get("bf16") else "fp32"
    if stated is not None and stated != flagged:
        raise PlanError(
            f"The script's precision is {stated!r} and the library's parameters say {flagged!r}: set fp16 or bf16 in"
            " the parameters to what the script trains in."
        )
    return {
        "batch_size": hyperparameters.get("batch_size", values.get("microbatches", 1)),
        "activation_checkpointing": False if checkpointing == "none" else checkpointing,
    }
