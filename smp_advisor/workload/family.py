"""Supported model families: configuration defaults, key aliases, and the data for inferring a shape."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import UnknownFamilyError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Family", "Inference", "families", "family"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """How a shape of this family is inferred from a parameter count."""

    series: tuple[str, ...]
    """Published series between which the hidden size is interpolated."""
    vocab: int
    """Default vocabulary size."""
    activation_error: float
    """Relative error of activation memory for nine of ten inferred shapes."""
    activation_error_below_1b: float
    """The same for models of fewer than 1e9 parameters."""
    kv_heads: int | None = None
    """Key-value heads where this number divides the heads. None: as many as heads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One transformers ``model_type``."""

    model_type: str
    label: str
    """Display name."""
    config_class: str
    defaults: Mapping[str, Any]
    """Defaults of the configuration class. None where it derives the value from others."""
    aliases: Mapping[str, str]
    """Alternative keys, each with the key that the family uses."""
    shape_keys: Mapping[str, str]
    """Configuration key of each `Shape` field (and of ``tied``)."""
    shape_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of a model built from a shape that differ from the configuration class's."""
    builder: str
    """Module of `smp_advisor.workload.families` that builds the model."""
    traits: Mapping[str, Any] = field(default_factory=dict)
    """Differences of the family's blocks from others of the same builder, as fields of its traits."""
    gated: bool = False
    """Whether the blocks are Llama's, with a gated feed-forward layer."""
    sparse_form: str | None = None
    """The family with the same blocks and a mixture of experts."""
    inference: Inference | None = None
    """None where a shape cannot be inferred from a parameter count."""


@cache
def families() -> dict[str, Family]:
    """Every family by its ``model_type``."""
    text = (files("smp_advisor.workload") / "data" / "families.json").read_text(encoding="utf-8")
    return {
        model_type: Family(
            model_type=model_type,
            inference=inference and Inference(**inference | {"series": tuple(inference["series"])}),
            **{"builder": model_type} | entry,
        )
        for model_type, entry in json.loads(text).items()
        for inference in (entry.pop("inference", None),)
    }


def family(model_type: object, *, source: str = "family") -> Family:
    """Family by its ``model_type``."""
    supported = families()
    if not isinstance(model_type, str) or model_type not in supported:
        raise UnknownFamilyError(f"{source} names the model type {model_type!r}; supported are {', '.join(supported)}.")
    return supported[model_type]
