"""How hyperparameters reach a script: as options and as variables.

After the `sagemaker-training` toolkit (5.1.4: `mapping.to_cmd_args`, `mapping.to_env_vars`), which containers run; a
test holds the two together.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["as_arguments", "as_variables"]


def as_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Options for the script, sorted by name.

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
    """``SM_<NAME>`` for each value: text as it is, anything else as compact JSON."""
    return {f"SM_{name.upper()}": _variable(value) for name, value in values.items()}


def _argument(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={one}" for name, one in sorted(value.items()))
    return "" if value is None else str(value)


def _variable(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
