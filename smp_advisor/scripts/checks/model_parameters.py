"""The number of parameters of the model, from a configuration's literals or a checkpoint's name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smp_advisor.reading.values import Argument, Constant, options

if TYPE_CHECKING:
    from smp_advisor.reading.trace import Call
    from smp_advisor.reading.values import Value
    from smp_advisor.scripts.context import Context

__all__ = ["configured_parameters", "model_parameters"]

_WIDTHS = ("n_embd", "hidden_size", "d_model")
_DEPTHS = ("n_layer", "num_hidden_layers", "num_layers")
_BILLIONS = re.compile(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)[bB](?![A-Za-z\d])")
"""``Llama-2-13b-hf``, ``gpt-neox-20b``; neither ``Mixtral-8x7B``, which has more, nor ``A3B`` of ``30B-A3B``."""


def model_parameters(context: Context) -> float | None:
    """Parameters of the model that the script names or configures; None for none or several models."""
    counts: set[float] = set()
    for call in context.trace.calls:
        if call.reached and call.method in ("from_pretrained", "from_config") and "Tokenizer" not in call.name:
            source = call.argument("pretrained_model_name_or_path", 0)
            counts |= {count for option in options(source) if (count := _named(option))}
        elif call.reached and call.name.startswith("transformers.") and call.name.endswith("Config"):
            counts |= {configured_parameters(call)} - {0.0}
    return counts.pop() if len(counts) == 1 else None


def configured_parameters(call: Call) -> float:
    """Parameters of a transformer by its literal width and depth: 12 x depth x width squared."""
    width = next((_whole(call, name) for name in _WIDTHS if _whole(call, name)), 0)
    depth = next((_whole(call, name) for name in _DEPTHS if _whole(call, name)), 0)
    return float(12 * depth * width**2)


def _whole(call: Call, name: str) -> int:
    value = call.keywords.get(name)
    return value.value if isinstance(value, Constant) and isinstance(value.value, int) else 0


def _named(value: Value) -> float:
    """Parameters in a checkpoint's name; 0 if it has none."""
    constant = value.default if isinstance(value, Argument) else value
    name = constant.value if isinstance(constant, Constant) else None
    match = _BILLIONS.search(name.rpartition("/")[2]) if isinstance(name, str) else None
    return float(match[1]) * 1e9 if match else 0.0
