"""Models by name: published shapes and configurations, with their aliases."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import require_types
from smp_advisor.errors import ModelError
from smp_advisor.workload.build import model_from_values
from smp_advisor.workload.family import families
from smp_advisor.workload.from_shape import model_from_shape
from smp_advisor.workload.published import published_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.model import Model
    from smp_advisor.workload.published import PublishedShape

__all__ = ["is_model_name", "model_from_name", "model_names"]

_LONGEST = 100
"""Characters of a name that is looked up."""
_SUFFIXES = ("hf", "instruct", "chat", "base", "it", "pt")
"""Endings of names for the same shape, trained further."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _NamedConfig:
    name: str
    config: Mapping[str, Any]
    source: str
    aliases: tuple[str, ...]


def is_model_name(text: str) -> bool:
    """Whether a text names a model of the package's tables.

    Examples
    --------
    >>> is_model_name("meta-llama/Meta-Llama-3-70B")
    True
    """
    return _key(text) in _models()


def model_from_name(text: str) -> Model:
    """Model by its name, with or without the owner of its repository.

    Raises
    ------
    ModelError
        No model of the tables has the name. The sentence suggests the most similar ones.

    Examples
    --------
    >>> model_from_name("gpt2-xl").parameter_count
    1557611200
    """
    require_types({"name": (text, str)}, "from_name")
    if not is_model_name(text):
        raise ModelError(f"The package has no model called {text[:_LONGEST]!r}: {_hint(text)}.")
    entry = _models()[_key(text)]
    if isinstance(entry, _NamedConfig):
        model = model_from_values(entry.config, source=entry.name, name=entry.name)
        return replace(model, note=f"the configuration of {entry.name}")
    return replace(_of_shape(entry), note=f"the shape of {entry.name}, {entry.source}")


def model_names() -> tuple[str, ...]:
    """Names of all models, without their aliases."""
    return tuple(dict.fromkeys(entry.name for entry in _models().values()))


def _of_shape(shape: PublishedShape) -> Model:
    keys = families()[shape.family].shape_keys
    sizes = {"kv_heads": shape.kv_heads, "ffn": shape.ffn, "max_positions": shape.positions, "tied": shape.tied}
    return model_from_shape(
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        vocab=shape.vocab,
        family=shape.family,
        name=shape.name,
        **{field: value for field, value in sizes.items() if field in keys},  # type: ignore[arg-type]
    )


@cache
def _models() -> dict[str, PublishedShape | _NamedConfig]:
    """Every model by the keys of its name and of its aliases."""
    data = json.loads((files("smp_advisor.workload") / "data" / "model_names.json").read_text(encoding="utf-8"))
    configs = [_NamedConfig(**{"aliases": (), **entry}) for entry in data["configs"]]
    models: dict[str, PublishedShape | _NamedConfig] = {}
    entries: list[PublishedShape | _NamedConfig] = [*published_shapes(), *configs]
    for entry in entries:
        aliases = entry.aliases if isinstance(entry, _NamedConfig) else data["aliases"].get(entry.name, ())
        for name in (entry.name, *aliases):
            models[_key(name)] = entry
    return models


def _key(text: str) -> str:
    """The part of a name that decides: without owner, ``Meta-``, separators, letter case and ``-hf``, ``-Instruct``."""
    words = re.split(r"[\s_-]+", text[: _LONGEST + 1].strip().lower().rsplit("/", 1)[-1])
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    if len(words) > 1 and words[0] == "meta":
        words.pop(0)
    return "".join(words)


def _hint(text: str) -> str:
    """The most similar names."""
    by_key = {key: entry.name for key, entry in _models().items()}
    near = difflib.get_close_matches(_key(text), by_key, n=3, cutoff=0.6)
    names = list(dict.fromkeys(by_key[key] for key in near))
    if names:
        return f"the most similar are {', '.join(names)}"
    return "give a parameter count such as 10B, the path of a config.json, or a name such as Llama 3 70B"
