"""A configuration of the same family that trains on any machine, for the companion cell that runs locally."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["SEQUENCE_LENGTH", "VOCABULARY", "small_configuration"]

SEQUENCE_LENGTH = 128
"""Longest sequence of a local run, in tokens."""
VOCABULARY = 1024
"""Largest vocabulary of the small model. The script folds other token ids into it."""

_LAYERS = 2


@cache
def _dimensions() -> dict[str, Any]:
    text = (files("smp_advisor.export") / "data" / "small_model.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def small_configuration(settings: dict[str, Any]) -> dict[str, Any]:
    """Reduce the sizes of a transformers configuration; settings that shape the architecture are unchanged.

    The vocabulary is that of the original, because the data is checked with it: the script reduces it.
    """
    dimensions = _dimensions()
    small = {name: value for name, value in settings.items() if name not in dimensions["dropped"]}
    for name, largest in dimensions["largest"].items():
        value = small.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            small[name] = min(value, largest)
    small |= _heads(settings)
    for name in dimensions["by_layer"]:
        if isinstance(small.get(name), list):
            small[name] = small[name][:_LAYERS]
    if "attention_types" in small:  # GPT-Neo: kinds of attention, and how often they repeat
        small["attention_types"] = [[["global"], _LAYERS]]
    rope = small.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        # Scaled positions have lists whose length depends on the width.
        small["rope_parameters"] = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return small


def _heads(settings: dict[str, Any]) -> dict[str, int]:
    """Numbers of heads; as many of them share keys and values as in the original, if there are that many."""
    dimensions = _dimensions()
    heads = {name: settings[name] for name in dimensions["heads"] if isinstance(settings.get(name), int)}
    shared = {name: settings[name] for name in dimensions["key_value_heads"] if isinstance(settings.get(name), int)}
    largest = dimensions["largest_heads"]
    total = max(heads.values(), default=largest)
    return {name: min(count, largest) for name, count in heads.items()} | {
        name: max(1, min(largest, largest * count // total)) for name, count in shared.items()
    }
