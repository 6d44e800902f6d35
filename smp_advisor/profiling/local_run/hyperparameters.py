"""Hyperparameters of a script as command-line options and as environment variables.

Follows the `sagemaker-training` toolkit of the containers (5.1.4: `mapping.to_cmd_args`, `mapping.to_env_vars`); a test
compares the two.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["as_arguments", "as_variables"]


def as_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Command-line options for the script, sorted by name.

    Examples
    --------
    >>> as_arguments({"lr": 0.1, "bf16": True, "mp_parameters": {"microbatches": 4, "ddp": True}})
    ['--bf16', 'True', '--lr', '0.1', '--mp_parameters', 'ddp=True,microbatches=4']
    """
    words: list[str] = []
    for name in sorted(hyperparameters):
        words += [f"--{name}" if len(name) > 1 else f"-{name}", _argument(hyperparameters[name])]
    return words


def as_variables(values: Mapping[str, Any]) -> dict[str, str]:
    """``SM_<NAME>`` variables: text unchanged, other values as compact JSON."""
    return {f"SM_{name.upper()}": _variable(value) for name, value in values.items()}


def _argument(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in sorted(value.items()))
    return "" if value is None else str(value)


def _variable(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
