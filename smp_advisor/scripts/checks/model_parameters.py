"""How many parameters the model has, where a configuration's literals or a checkpoint's name tell."""

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
"""``Llama-2-13b-hf``, ``gpt-neox-20b``; not ``Mixtral-8x7B``, which has more, nor what is active of ``30B-A3B``."""


def model_parameters(context: Context) -> float | None:
    """Parameters of the one model that the script names or configures; None where it names none, or several."""
    found: set[float] = set()
    for call in context.trace.calls:
        if call.reached and call.method in ("from_pretrained", "from_config") and "Tokenizer" not in call.name:
            given = call.argument("pretrained_model_name_or_path", 0)
            found |= {count for one in (options(given) if given is not None else ()) if (count := _named(one))}
        elif call.reached and call.name.startswith("transformers.") and call.name.endswith("Config"):
            found |= {configured_parameters(call)} - {0.0}
    return found.pop() if len(found) == 1 else None


def configured_parameters(call: Call) -> float:
    """Parameters of a transformer by its literal width and depth: twelve times depth times width squared."""
    width = next((_whole(call, name) for name in _WIDTHS if _whole(call, name)), 0)
    depth = next((_whole(call, name) for name in _DEPTHS if _whole(call, name)), 0)
    return float(12 * depth * width**2)


def _whole(call: Call, name: str) -> int:
    value = call.keywords.get(name)
    return value.value if isinstance(value, Constant) and isinstance(value.value, int) else 0


def _named(value: Value) -> float:
    """Parameters that a checkpoint's name gives; 0 where it gives none."""
    given = value.default if isinstance(value, Argument) else value
    name = given.value if isinstance(given, Constant) else None
    found = _BILLIONS.search(name.rpartition("/")[2]) if isinstance(name, str) else None
    return float(found[1]) * 1e9 if found else 0.0
