"""The model families that can be read: configuration defaults, other spellings of keys, names for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Family", "families", "family"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One transformers ``model_type``."""

    model_type: str
    label: str
    """Name for people."""
    config_class: str
    defaults: Mapping[str, Any]
    """What the configuration class fills in; None where it derives the value from others."""
    aliases: Mapping[str, str]
    """Other spellings of keys to the one the family uses."""
    shape_keys: Mapping[str, str]
    """Names of `Shape` fields (and ``tied``) to configuration keys."""


@cache
def families() -> dict[str, Family]:
    """Every family by its ``model_type``."""
    text = (files("smp_advisor.workload") / "data" / "config_defaults.json").read_text(encoding="utf-8")
    return {
        model_type: Family(
            model_type=model_type,
            label=entry["label"],
            config_class=entry["config"],
            defaults=entry["defaults"],
            aliases=entry["aliases"],
            shape_keys=entry["shape"],
        )
        for model_type, entry in json.loads(text).items()
    }


def family(model_type: object, *, source: str = "family") -> Family:
    """Family by its ``model_type``."""
    known = families()
    if not isinstance(model_type, str) or model_type not in known:
        raise ModelError(f"{source} names the model type {model_type!r}; supported are {', '.join(known)}.")
    return known[model_type]
