"""Configurations of supported families as plain values, each checked when it is read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.core.files import sentence
from smp_advisor.errors import ModelError, UnknownFamilyError
from smp_advisor.workload.counts import MAX_LAYERS
from smp_advisor.workload.layers import activation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.layers import Activation


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """How a shape of this family is inferred from a parameter count."""

    series: tuple[str, ...]
    """Published series between which the hidden size is interpolated."""
    vocab: int
    activation_error: float
    """Relative error of activation memory for nine of ten inferred shapes."""
    activation_error_below_1b: float
    """The same for models of fewer than 1e9 parameters."""
    kv_heads: int | None = None
    """Key-value heads where this number divides the heads. None: as many as heads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    model_type: str
    label: str
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
    supported = families()
    if not isinstance(model_type, str) or model_type not in supported:
        key = "unknown_family" if source == "family" else "unknown_model_type"
        names = ", ".join(supported)
        raise UnknownFamilyError(sentence("workload", key, source=source, model_type=model_type, names=names))
    return supported[model_type]


_MAXIMUM_SIZE = 10**9


class Settings:
    """A configuration's values, with its family's defaults filled in."""

    __slots__ = ("family", "source", "values")

    def __init__(self, values: Mapping[str, Any], family: Family, source: str) -> None:
        by_key = dict(values)
        for alias, key in family.aliases.items():
            if alias in by_key and key not in by_key:
                by_key[key] = by_key.pop(alias)
        self.values: dict[str, Any] = {**family.defaults, **by_key}
        self.family = family
        self.source = source

    def value(self, key: str) -> Any:
        """Unchecked value of a key, or None."""
        return self.values.get(key)

    def is_set(self, key: str) -> bool:
        """Return whether the key has a value other than null."""
        return self.values.get(key) is not None

    def size(self, key: str, *, default: int | None = None, least: int = 1, most: int = _MAXIMUM_SIZE) -> int:
        """Whole number of at least `least`. `default` replaces a null or missing value."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(f"{key} must be a whole number of at least {least}, not {value!r:.80}")
        if value > most:
            raise self.error(f"{key} must be at most {most:,}, not {value:,}")
        return value

    def layers(self, key: str, *, default: int | None = None) -> int:
        return self.size(key, default=default, most=MAX_LAYERS)

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r:.80}")
        return value

    def rate(self, key: str) -> float:
        """Share between 0 and 1, such as a dropout probability."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.error(f"{key} must be between 0 and 1, not {value!r:.80}")
        return float(value)

    def activation(self, key: str, name: str | None = None) -> Activation:
        try:
            return activation(name or self.values.get(key))
        except ModelError as error:
            raise self.error(f"{key}: {error}".removesuffix(".")) from None

    def head_dim(self, hidden: int, heads: int, key: str | None = None) -> int:
        """Width of a head: the value of the family's `key` where it is set, else hidden / heads."""
        if key is not None and self.is_set(key):
            return self.size(key)
        if hidden % heads:
            raise self.error(f"the hidden size {hidden} must be a multiple of the {heads} attention heads")
        return hidden // heads

    def refuse_cross_attention(self) -> None:
        if self.flag("add_cross_attention"):
            raise self.error("add_cross_attention must be false: a decoder with cross-attention is read as T5 only")

    def labels(self) -> int:
        """Classes of a classification head. The default of transformers is two."""
        names = self.values.get("id2label")
        if isinstance(names, dict) and names:
            return len(names)
        return self.size("num_labels", default=2)

    def error(self, problem: str) -> ModelError:
        return ModelError(f"In {self.source}, {problem}.")


Task = Literal[
    "language-model", "sequence-classification", "token-classification", "image-classification", "pretraining", "none"
]

_SUFFIXES: dict[str, Task] = {
    "ForCausalLM": "language-model",
    "LMHeadModel": "language-model",
    "ForMaskedLM": "language-model",
    "ForConditionalGeneration": "language-model",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
    "ForPreTraining": "pretraining",
    "Model": "none",
}


def head_task(settings: Settings, *supported: Task) -> tuple[Task, str]:
    """Task of the head, the first of `supported` unless ``architectures`` names another, and a note if assumed."""
    architectures = settings.value("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(name, str):
        return supported[0], ""
    # The longest suffix decides: LMHeadModel also ends in Model.
    suffix = max((suffix for suffix in _SUFFIXES if name.endswith(suffix)), key=len, default=None)
    if suffix is not None and _SUFFIXES[suffix] in supported:
        return _SUFFIXES[suffix], ""
    return supported[0], f"counted with a {supported[0]} head because the head of {name} is unknown"
